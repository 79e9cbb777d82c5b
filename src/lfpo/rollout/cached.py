"""Forwards of windows against stored keys and values: the approximate caches of Fast-dLLM, and the exact one of models
that attend block by block; over a causal context also without one."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core.active_rows import ActiveRows
from lfpo.core.compiled import bucket, padded
from lfpo.core.doubled import noised_hidden
from lfpo.core.forward import Forward, completion_columns, device_index, first_offset, pieces
from lfpo.models.kv_cache import KeyValueCache, Pair, columns_for, window_hidden

# With a cache, rollout_tokens bounds the tokens of a forward's windows; keys and values are held for this many times
# rollout_tokens at most.
CACHED = 4


def rows_in_flight(length: int, sampler: Sampler, rollout_tokens: int, stores_blocks: bool) -> int:
    """Rows of `length` tokens that run at once. stores_blocks: whether finished blocks are kept (see StoredBlocks)."""
    if sampler.cache == "none" and not stores_blocks:
        return max(1, rollout_tokens // length)
    window = sampler.block_length if sampler.cache == "dual" or stores_blocks else sampler.gen_length
    assert window
    return max(1, min(rollout_tokens // window, CACHED * rollout_tokens // length))


def cache_capacity(lengths: Sequence[int], sampler: Sampler, rollout_tokens: int, stores_blocks: bool = False) -> int:
    """Tokens that a cache must hold for rows of these lengths, which are run longest first. stores_blocks: see
    `rows_in_flight`."""
    longest_first = enumerate(sorted(lengths, reverse=True))
    return max(
        min(rows_in_flight(length, sampler, rollout_tokens, stores_blocks), len(lengths) - i) * columns_for(length)
        for i, length in longest_first
    )


class CachedForward(Forward):
    """Runs windows of the rows in flight against a cache of their keys and values. How it is filled is its own."""

    def __init__(self, *arguments: Any, rollout_tokens: int, **options: Any):
        super().__init__(*arguments, rollout_tokens=rollout_tokens, **options)
        totals = [len(p) + completion_columns(self.sampler, self.model) for p in self.prompts]
        self.cache = KeyValueCache(cache_capacity(totals, self.sampler, rollout_tokens, self.stores_blocks))
        self.cached: list[int] = []  # the rows in the cache, in its order

    def rows_at_once(self, length: int) -> int:
        return rows_in_flight(length, self.sampler, self.rollout_tokens, self.stores_blocks)

    def _inputs(self, active: ActiveRows, row_ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
        """As that of Forward; rows that have left are dropped from the cache. Those that stay keep their order, and
        come before new ones."""
        stay = [place for place, row in enumerate(self.cached) if row in set(row_ids)]
        if len(stay) < len(self.cached):
            self.cache.keep_rows(device_index(stay, self.model.device))
        self.cached = list(row_ids)
        return super()._inputs(active, row_ids)

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
        computed: Sequence[int],
        computed_states: torch.Tensor | None,
        causal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [A, block_length, D]: `computed_states` for the rows at the places `computed`, and for
        the others the first of a window of `width` tokens that begins at column `start` [A], against the cache.
        causal [A]: see `window_hidden`."""
        size, length = ids.shape
        if computed_states is not None and len(computed) == size:
            return computed_states
        # All rows take part, so that the cache is read and written in place. Rows that were just computed read and
        # write its scratch column only.
        index = device_index(computed, self.model.device)
        start = start.index_fill(0, index, length + 1)
        if self.compiled:
            rows, columns = self._shape(size, length)
            left = columns - length
            ids, mask = padded(ids, mask, rows, left, self.model.pad_id)
            start = F.pad(start + left, (0, rows - size), value=columns + 1)  # added rows write scratch columns only
            causal = None if causal is None else F.pad(causal, (0, rows - size))
        kind: Json = {"causal_B": causal, "compiled": self.compiled}
        states = window_hidden(self.model, ids, mask, start, width, self.cache, **kind)
        states = states[:size, : self.block_length]
        return states if computed_states is None else states.index_copy(0, index, computed_states)


class ApproximateCache(CachedForward):
    """SamplerConfig.cache: keys and values are computed from whole rows when a block starts, and read until it ends."""

    def __init__(self, *arguments: object, **options: Any):
        super().__init__(*arguments, **options)
        self.renewals: dict[int, tuple[int, int]] = {}  # row -> block of its last renewal, forwards since then

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """As that of Forward: from whole rows where the cache is renewed, else from the active block (for "prefix",
        also what follows it) and the cache."""
        ids, mask, fresh = self._inputs(active, row_ids)
        if self.pace is not None:
            blocks = self.pace.active(row_ids)
        else:  # the one wait for the device in a step
            blocks = torch.minimum(active.block, active.blocks - 1).tolist()
        renewed = [self._due(row, block) for row, block in zip(row_ids, blocks, strict=True)]
        due_places = [i for i, due in enumerate(renewed) if due]
        start, window = self._block_start(active), self.block_length
        shift = int(self.model.family.shift)
        seen = window + shift if self.sampler.cache == "dual" else mask.shape[1] - start + shift
        due_A = device_index(renewed, start.device).bool()
        active.queries += torch.where(active.done, 0, torch.where(due_A, mask.sum(-1), seen))
        self.cache.fit(*self._shape(*ids.shape))
        states = self._whole_rows(due_places, start, row_ids, fresh, ids, mask, self.cache) if due_places else None
        if self.sampler.cache == "prefix" and not all(renewed):
            first = min(block for block, due in zip(blocks, renewed, strict=True) if not due)
            window = active.tokens.shape[1] - first * self.block_length
        return [self._windows(ids, mask, start, window, due_places, states)]

    def _due(self, row: int, block: int) -> bool:
        """Whether a row's keys and values are computed anew in its next forward, which runs this block."""
        block_held, age = self.renewals.get(row, (-1, 0))
        due = block != block_held or age + 1 == self.sampler.cache_refresh
        self.renewals[row] = block, 0 if due else age + 1
        return due


# A prompt's first forward: keys and values of its n whole-block tokens, [1, H_kv, n, D] for each layer, and hidden
# states of the first block [block_length, D].
Start = tuple[dict[int, Pair], torch.Tensor]


class StoredBlocks(CachedForward):
    """The exact cache of a model that attends block by block, in which no token sees a later block.

    A row's first forward runs its prompt and its first block; the whole blocks of the prompt are stored. Every later
    forward runs one block: the active one, or, when it is full, once more to store it. The last block of a row is not
    stored. Over a causal context the first forward runs the prompt alone, and what is stored is computed causally; the
    state of the last token of such a forward predicts the first token of the next block.

    The first forward of a prompt is run once for all its rollouts, whenever they enter, and is never compiled.
    """

    stores_blocks = True

    def __init__(self, *arguments: object, **options: Any):
        super().__init__(*arguments, **options)
        self.to_start = Counter(self.prompts)  # rollouts of each prompt that have not entered yet
        self.starts: dict[tuple[int, ...], Start] = {}  # of prompts that have such rollouts

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """As that of Forward; of rows that are storing the first state alone has a meaning, over a causal context: it
        predicts the first token of the next block."""
        ids, mask, fresh = self._inputs(active, row_ids)
        entering = [i for i, new in enumerate(fresh) if new]
        self.cache.fit(*self._shape(*ids.shape))
        start, entering_states = self._block_start(active), None
        shift = int(self.model.family.shift)  # the token before the block is run, too
        ran = torch.full_like(start, self.block_length + shift)
        if entering:
            entering_states = self._enter(entering, row_ids, ids, mask)
            index = device_index(entering, self.model.device)
            prompt_tokens = mask[index, : self.width].sum(-1) - active.offset[index] - shift
            ran.index_add_(0, index, prompt_tokens - self.block_length * self.structure.causal)
        active.queries += torch.where(active.done, 0, ran)
        end = start + self.block_length
        seen = mask * (torch.arange(ids.shape[1], device=end.device) < end[:, None])
        if not self.structure.causal:
            return [self._windows(ids, seen, start, self.block_length, entering, entering_states)]
        states = self._windows(ids, seen, start, self.block_length, entering, entering_states, active.storing)
        states[:, 0] = torch.where(active.storing[:, None], states[:, -1], states[:, 0])
        return [states]

    def _enter(
        self, entering: Sequence[int], row_ids: Sequence[int], ids: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states of the first blocks of the rows at the places `entering`, whose prompts are stored."""
        rows: dict[tuple[int, ...], list[int]] = {}  # prompt -> places of its rows, which share a first forward
        for place in entering:
            prompt = self.prompts[row_ids[place]]
            self.to_start[prompt] -= 1
            rows.setdefault(prompt, []).append(place)
        first = {prompt: places[0] for prompt, places in rows.items() if prompt not in self.starts}
        self.starts |= zip(first, self._starts(list(first.values()), row_ids, ids, mask), strict=True)
        states, order = [], []
        for prompt, places in rows.items():
            layers, hidden = self.starts[prompt] if self.to_start[prompt] else self.starts.pop(prompt)
            offset = first_offset(len(prompt), self.sampler, self.model)
            self.cache.put(layers, device_index(places, self.model.device), ids.shape[1] - self.width + offset)
            states.append(hidden.expand(len(places), -1, -1))
            order += places
        return torch.cat(states)[device_index(order, self.model.device).argsort()]

    def _starts(
        self, places: Sequence[int], row_ids: Sequence[int], ids: torch.Tensor, mask: torch.Tensor
    ) -> list[Start]:
        """The first forwards of the rows at these places, in pieces of rows of similar length."""
        size, starts = 0 if self.structure.causal else self.block_length, []
        prompts = [self.prompts[row_ids[i]] for i in places]
        offsets = [first_offset(len(p), self.sampler, self.model) for p in prompts]
        for piece in pieces(tuple(len(p) + size for p in prompts), self.piece_tokens):
            longest = max(len(p) for p in prompts[piece])
            begin, end = self.width - longest, self.width + max(size - o for o in offsets[piece])
            index, cache = device_index(places[piece], self.model.device), KeyValueCache()
            hidden = self.model.hidden(ids[index, begin:end], mask[index, begin:end], cache, structure=self.structure)
            for i, (prompt, offset) in enumerate(zip(prompts[piece], offsets[piece], strict=True)):
                stored = slice(longest - len(prompt), longest - offset)
                # Copies, which do not keep alive what they are cut from.
                layers = {
                    n: (k[i : i + 1, :, stored].clone(), v[i : i + 1, :, stored].clone())
                    for n, (k, v) in cache.layers.items()
                }
                # Over a causal context all states of the first block are that of the prompt's last token.
                states = hidden[i, stored.stop : stored.stop + size] if size else hidden[i, -1:]
                starts.append((layers, states.expand(self.block_length, -1).clone()))
        return starts


class DoubledForward(Forward):
    """Forwards over a causal context without stored blocks, for measuring what these save: in [noised; clean] the block
    attends within itself and to the context, whose own tokens attend causally."""

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """As that of Forward; of rows that are storing the first state predicts the first token of the next block."""
        ids, mask, _ = self._inputs(active, row_ids)
        structure, prompt_B = dataclasses.replace(self.structure, doubled=True), active.prompt_mask.sum(-1)
        noised, clean = noised_hidden(self.model, ids, ids, mask, prompt_B, structure=structure)
        active.queries += torch.where(active.done, 0, structure.tokens(mask.sum(-1), prompt_B))
        row = torch.arange(len(ids), device=ids.device)[:, None]
        block = torch.minimum(active.block, active.blocks - 1)
        columns = (block * self.block_length)[:, None] + torch.arange(self.block_length, device=ids.device)
        states = noised[row, columns]
        before = clean[row[:, 0], self.width + columns[:, 0] - 1]
        states[:, 0] = torch.where(active.storing[:, None], before, states[:, 0])
        return [states]
