"""The forwards of the rows in flight: hidden states of each row's active block, from whole rows, in pieces."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from lfpo.config.sampler import SamplerConfig
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.pace import Pace
from lfpo.core.rows import ActiveRows

# Tokens in one piece of a forward, by device. A CPU is as fast with few tokens as with many; a GPU needs many.
PIECE_TOKENS = {"cpu": 1024, "cuda": 16384}
LENGTH_BUCKET = 64  # compiled forwards are padded to multiples of this length
# What a forward costs besides its tokens, in tokens: a GPU reads all weights, in the time of computing some 200.
FORWARD_TOKENS = 256


class Forward:
    """Runs the model for the rows in flight.

    pace: what is known of the rows ahead; None: nothing. compiled: run forwards through torch.compile, padded to few shapes.
    whole_completion: give hidden states of all its positions, as if they were the active block.
    Rows must enter in an order in which no new row is longer than the longest row in flight.
    """

    def __init__(
        self,
        model: MaskedDiffusionLM,
        sampler: SamplerConfig,
        prompts: Sequence[Sequence[int]],
        *,
        pace: Pace | None,
        compiled: bool,
        rollout_tokens: int,
        whole_completion: bool = False,
    ):
        assert sampler.block_length and sampler.gen_length
        self.model, self.sampler, self.pace = model, sampler, pace
        self.prompts = [tuple(p) for p in prompts]
        self.compiled, self.whole_completion = compiled, whole_completion
        self.block_length = sampler.gen_length if whole_completion else sampler.block_length
        self.structure = model.sampling_structure(sampler.block_length)
        self.started: set[int] = set()  # rows that have had their first forward
        self.longest = self.width = max(len(p) for p in prompts)  # width: that of the longest prompt in flight
        # More than rollout_tokens run at once only with a cache, whose renewals are cut to it.
        self.piece_tokens = min(rollout_tokens, PIECE_TOKENS.get(model.device.type, PIECE_TOKENS["cpu"]))

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """Hidden states [A, block_length, D] of the active blocks; with guidance, also those without the prompt.

        row_ids: active.row as a list, so that the device need not be asked. Updates active.queries.
        """
        ids, mask, fresh = self._inputs(active, row_ids)
        inputs = [ids]
        if self.sampler.cfg_scale:
            blank = torch.full_like(ids[:, : self.width], self.model.mask_id)
            inputs.append(torch.cat([blank, active.tokens], dim=1))
        active.queries += torch.where(active.done, 0, mask.sum(-1)) * len(inputs)
        start, places = self._block_start(active), range(len(row_ids))
        return [self._whole_rows(places, start, row_ids, fresh, x, mask) for x in inputs]

    def _inputs(self, active: ActiveRows, row_ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
        """Tokens and mask of whole rows, [A, width + C], and which rows have had no forward yet."""
        self.width = max(len(self.prompts[r]) for r in row_ids)
        skip = self.longest - self.width
        ids = torch.cat([active.prompt_ids[:, skip:], active.tokens], dim=1)
        mask = torch.cat([active.prompt_mask[:, skip:], torch.ones_like(active.tokens)], dim=1)
        fresh = [r not in self.started for r in row_ids]
        self.started.update(row_ids)
        return ids, mask, fresh

    def _block_start(self, active: ActiveRows) -> torch.Tensor:
        """Column at which the block that each row's forward runs begins, [A]; that of its last block if it is done."""
        block = torch.minimum(active.block, active.blocks - 1) - active.storing.long()
        return self.width - active.offset + block * (0 if self.whole_completion else self.block_length)

    def _whole_rows(
        self,
        places: Sequence[int],
        start: torch.Tensor,
        row_ids: Sequence[int],
        fresh: Sequence[bool],
        ids: torch.Tensor,
        mask: torch.Tensor,
        cache: Any = None,
    ) -> torch.Tensor:
        """Hidden states of the rows at these places, at block_length columns from `start` [A] on, from forwards over
        whole rows. Their keys and values go into the cache.

        Runs pieces of rows of similar length, so that short rows are not padded to the longest. Rows with the same
        prompt that have revealed nothing yet have the same input, so one of them is run.
        """
        run: list[int] = []  # places
        first: dict[Hashable, int] = {}
        source = []  # for each of `places` the index in `run`
        for place in places:
            same: Hashable = self.prompts[row_ids[place]] if fresh[place] else place
            if same not in first:
                first[same] = len(run)
                run.append(place)
            source.append(first[same])

        states, order, device = [], [], self.model.device
        lengths = [ids.shape[1] - self.width + len(self.prompts[row_ids[i]]) for i in run]
        columns = start[:, None] + torch.arange(self.block_length, device=device)
        for piece in pieces(tuple(lengths), self.piece_tokens, LENGTH_BUCKET if self.compiled else 1):
            index, left = device_index(run[piece], device), ids.shape[1] - max(lengths[piece])
            served = [i for i, s in enumerate(source) if piece.start <= s < piece.stop]
            rows = device_index([places[i] for i in served], device)
            origin = device_index([source[i] - piece.start for i in served], device)
            if cache is not None:
                cache.fill(rows, origin, later=self.compiled)
            real = mask[index, left:] if self.compiled or min(lengths[piece]) < max(lengths[piece]) else None
            hidden = self._padded_forward(ids[index, left:], real, cache)
            states.append(hidden[origin[:, None], columns[rows] - left])
            order += served
        return torch.cat(states)[device_index(order, device).argsort()]

    def _padded_forward(self, ids: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> torch.Tensor:
        """Hidden states; a compiled forward is padded to one of few shapes, and the padding is cut off again."""
        if not self.compiled or mask is None:
            return self.model.hidden(ids, mask, cache, structure=self.structure)
        size, left = len(ids), -ids.shape[1] % LENGTH_BUCKET
        ids, mask = padded(ids, mask, bucket(size), left, self.model.pad_id)
        hidden = self.model.hidden(ids, mask, cache, structure=self.structure, compiled=True)[:size, left:]
        if cache is not None:
            cache.store()
        return hidden


def device_index(index: Sequence[int], device: torch.device) -> torch.Tensor:
    """Indices [n] int64 on a device. Pinned memory lets a GPU copy them without a wait."""
    on_gpu = device.type == "cuda"
    return torch.tensor(index, dtype=torch.long, pin_memory=on_gpu).to(device, non_blocking=on_gpu)


def padded(
    ids: torch.Tensor, mask: torch.Tensor, rows: int, left: int, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs with `rows` rows, the added ones copies of the first, and `left` columns of padding on the left."""
    extra = rows - len(ids)
    ids = F.pad(torch.cat([ids, ids[:1].expand(extra, -1)]), (left, 0), value=pad_id)
    return ids, F.pad(torch.cat([mask, mask[:1].expand(extra, -1)]), (left, 0))


def bucket(rows: int) -> int:
    """The least number of rows that is at least `rows` and a power of two or one and a half times one."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


@functools.lru_cache(64)
def pieces(lengths: tuple[int, ...], budget: int, step: int = 1) -> list[slice]:
    """Consecutive slices of rows whose forwards together compute the fewest tokens, padding included, where a forward
    costs FORWARD_TOKENS besides. Each is within `budget` tokens; a longer row stands alone.

    step: 1, or LENGTH_BUCKET for forwards that are padded to multiples of it and to `bucket` rows.
    """
    best: list[tuple[int, int]] = [(0, 0)]  # for the first n rows: the cost, and where the last piece starts
    for end in range(1, len(lengths) + 1):
        candidates, longest = [], 0
        for start in range(end - 1, -1, -1):
            longest = max(longest, lengths[start])
            rows = end - start
            if rows > 1 and longest * rows > budget:
                break
            tokens = longest * rows if step == 1 else bucket(rows) * (longest + -longest % step)
            candidates.append((best[start][0] + tokens + FORWARD_TOKENS, start))
        best.append(min(candidates))
    slices, end = [], len(lengths)
    while end:
        slices.append(slice(best[end][1], end))
        end = best[end][1]
    return slices[::-1]
