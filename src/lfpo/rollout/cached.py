"""Forwards against stored keys and values: the runner of all caches, and the approximate ones of Fast-dLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from lfpo.models import MaskedDiffusionLM
from lfpo.models.kv_cache import KeyValueCache, columns_for
from lfpo.rollout.forward import Forward
from lfpo.rollout.pace import Pace
from lfpo.rollout.packing import bucket, cache_capacity, device_index, padded
from lfpo.rollout.rows import ActiveRows, completion_columns
from lfpo.rollout.sampler import SamplerConfig


class CacheRunner(Forward):
    """Runs windows of the rows in flight against a cache of their keys and values. How it is filled is its own."""

    def __init__(
        self,
        model: MaskedDiffusionLM,
        sampler: SamplerConfig,
        prompts: Sequence[Sequence[int]],
        *,
        rollout_tokens: int,
        **how: Any,
    ):
        super().__init__(model, sampler, prompts, rollout_tokens=rollout_tokens, **how)
        totals = [len(p) + completion_columns(sampler, model) for p in prompts]
        stores = bool(model.block_length)
        self.cache = KeyValueCache(cache_capacity(totals, sampler, rollout_tokens, stores))

    def keep(self, index: list[int]) -> None:
        self.cache.keep(device_index(index, self.model.device))

    def _fit(self, ids: torch.Tensor) -> None:
        """Make room for rows [A, L]."""
        self.cache.fit(*self._shape(*ids.shape))

    def _shape(self, size: int, length: int) -> tuple[int, int]:
        """Rows and tokens a row that are held for `size` rows of `length` tokens; compiled windows have few shapes."""
        if not self.compiled:
            return size, length
        columns = columns_for(length)
        return max(size, min(bucket(size), self.cache.capacity // columns)), columns - 1

    def _windows(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        start: torch.Tensor,
        width: int,
        fresh: Sequence[int],
        found: torch.Tensor | None,
    ) -> torch.Tensor:
        """Hidden states [A, block_length, D]: `found` for the rows at the places `fresh`, which were just computed, and
        for the others the first of a window of `width` tokens that begins at column `start` [A], against the cache."""
        size, length = ids.shape
        if found is not None and len(fresh) == size:
            return found
        # All rows take part, so that the cache is read and written in place. Rows that were just computed read and
        # write its scratch column only.
        if found is not None:
            start = start.index_fill(0, device_index(fresh, self.model.device), length + 1)
        if self.compiled:
            rows, columns = self._shape(size, length)
            left = columns - length
            ids, mask = padded(ids, mask, rows, left, self.model.pad_id)
            start = F.pad(start + left, (0, rows - size), value=columns + 1)  # added rows write scratch columns only
        states = self.model.window_hidden(ids, mask, start, width, self.cache, compiled=self.compiled)
        states = states[:size, : self.block_length]
        return states if found is None else states.index_copy(0, device_index(fresh, self.model.device), found)


class ApproximateCache(CacheRunner):
    """SamplerConfig.cache: keys and values are computed from whole rows when a block starts, and read until it ends."""

    def __init__(self, *what: Any, pace: Pace, **how: Any):
        super().__init__(*what, **how)
        assert self.sampler.gen_length
        self.pace, self.blocks = pace, self.sampler.gen_length // self.block_length

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """As that of Forward: from whole rows where the cache is renewed, else from the active block (for "prefix",
        also what follows it) and the cache."""
        ids, mask, fresh = self._inputs(active, row_ids)
        refresh = self.sampler.cache_refresh
        due = active.age < 0
        if refresh is not None:
            due |= active.age + 1 >= refresh
        if self.pace.known:
            renewed, blocks = self.pace.due(row_ids), self.pace.active(row_ids)
        else:  # the one wait for the device in a step
            flags, blocks = torch.stack([due.long(), active.block.clamp(max=self.blocks - 1)]).tolist()
            renewed = [bool(flag) for flag in flags]
        whole = [i for i, r in enumerate(renewed) if r]
        self._fit(ids)
        columns = self._block_columns(active)
        hidden = self._renewed(whole, columns, row_ids, fresh, ids, mask) if whole else None
        window = self.block_length
        if self.sampler.cache == "prefix" and not all(renewed):
            first = min(block for block, r in zip(blocks, renewed, strict=True) if not r)
            window = (self.blocks - first) * self.block_length
        self._count(active, due, columns[:, 0], mask)
        return [self._windows(ids, mask, columns[:, 0], window, whole, hidden)]

    def _renewed(
        self,
        whole: Sequence[int],
        columns: torch.Tensor,
        row_ids: Sequence[int],
        fresh: Sequence[bool],
        ids: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states of the active blocks of the rows at the places `whole`, whose keys and values are computed and
        put into the cache."""
        run, source = self._shared(whole, row_ids, fresh)
        size = ids.shape[1]
        lengths = [size - self.width + len(self.prompts[row_ids[i]]) for i in run]
        states, places = [], []
        for piece in self._cut(lengths):
            index, start = device_index(run[piece], self.model.device), size - max(lengths[piece])
            served = [i for i, s in enumerate(source) if piece.start <= s < piece.stop]
            rows = device_index([whole[i] for i in served], self.model.device)
            origin = device_index([source[i] - piece.start for i in served], self.model.device)
            self.cache.fill(rows, origin, later=self.compiled)
            if self.compiled:
                hidden = self._bucketed(ids[index, start:], mask[index, start:], self.cache)
                self.cache.store()
            else:
                hidden = self.model.hidden(ids[index, start:], mask[index, start:], self.cache)
            states.append(hidden[origin[:, None], columns[rows] - start])
            places += served
        return torch.cat(states)[device_index(places, self.model.device).argsort()]

    def _count(self, active: ActiveRows, due: torch.Tensor, start: torch.Tensor, mask: torch.Tensor) -> None:
        """Update each row's tokens run, and its forwards since its cache was renewed."""
        window = self.block_length if self.sampler.cache == "dual" else mask.shape[1] - start
        window = window + int(self.model.family.shift)
        active.queries += torch.where(active.done, 0, torch.where(due, mask.sum(-1), window))
        active.age = torch.where(due, 0, active.age + 1)
