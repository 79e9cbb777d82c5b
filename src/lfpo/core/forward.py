"""The rows in flight, and their forwards: hidden states of each row's active block, from whole rows, in pieces."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import torch

from lfpo.config.sampler import Sampler
from lfpo.core.active_rows import ActiveRows
from lfpo.core.compiled import LENGTH_BUCKET, bucket, padded_hidden
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.pace import Pace
from lfpo.core.structure import FULL

# Tokens in one piece of a forward, by device. A CPU is as fast with few tokens as with many; a GPU needs many.
PIECE_TOKENS = {"cpu": 1024, "cuda": 16384}
# What a forward costs besides its tokens, in tokens: a GPU reads all weights, in the time of computing some 200.
FORWARD_TOKENS = 256


def select(rows: ActiveRows, index: list[int]) -> ActiveRows:
    """A copy of the rows at these places."""
    at = torch.tensor(index, dtype=torch.long, device=rows.row.device)
    return ActiveRows(**{name: value[at] for name, value in vars(rows).items()})


def join(parts: Sequence[ActiveRows]) -> ActiveRows:
    """The rows of all parts, in order."""
    columns = [vars(p) for p in parts]
    return ActiveRows(**{name: torch.cat([c[name] for c in columns]) for name in columns[0]})


def before_first_step(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampler: Sampler, model: MaskedDiffusionLM
) -> ActiveRows:
    """All rows before their first step, with nothing revealed. sampler: with its lengths filled in."""
    device, size = model.device, len(prompts)
    ids, mask = (x.to(device) for x in left_pad(prompts, model.pad_id))
    shape = (size, completion_columns(sampler, model))
    zeros = ("clock", "block", "block_step", "nfe", "queries")
    return ActiveRows(
        row=torch.arange(size, device=device),
        seed=torch.tensor(list(seeds), dtype=torch.long, device=device),
        prompt_ids=ids,
        prompt_mask=mask,
        tokens=torch.full(shape, model.mask_id, device=device),
        reveal_step=torch.full(shape, -1, device=device),
        confidence=torch.zeros(shape, dtype=torch.float32, device=device),
        entropy=torch.zeros(shape, dtype=torch.float32, device=device),
        offset=torch.tensor([first_offset(len(p), sampler, model) for p in prompts], device=device),
        blocks=torch.tensor([len(block_sizes(len(p), sampler, model)) for p in prompts], device=device),
        storing=torch.zeros(size, dtype=torch.bool, device=device),
        done=torch.zeros(size, dtype=torch.bool, device=device),
        **{name: torch.zeros(size, dtype=torch.long, device=device) for name in zeros},
    )


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 [B, longest row] on the CPU, padded on the left so that all rows end at the
    same column."""
    width = max(len(r) for r in rows)
    ids = torch.tensor([[pad_id] * (width - len(r)) + list(r) for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    return ids, mask


def completion_columns(sampler: Sampler, model: MaskedDiffusionLM) -> int:
    """C: gen_length, and block_length - 1 more where a prompt's last tokens may share a block with the completion's
    first, so that rows end with a whole block."""
    structure = model.sampling_structure(sampler.block_length)
    return sampler.gen_length + (0 if structure == FULL or structure.causal else sampler.block_length - 1)


def first_offset(prompt_length: int, sampler: Sampler, model: MaskedDiffusionLM) -> int:
    """Prompt tokens in a row's first block."""
    structure = model.sampling_structure(sampler.block_length)
    return 0 if structure == FULL else structure.shared(prompt_length)


def block_sizes(prompt_length: int, sampler: Sampler, model: MaskedDiffusionLM) -> list[int]:
    """Completion positions in each block of a row. Its last block is the one that holds position gen_length - 1."""
    offset, size = first_offset(prompt_length, sampler, model), sampler.block_length
    blocks = -(-(offset + sampler.gen_length) // size)
    return [size - offset, *[size] * (blocks - 1)]


class Forward:
    """Runs the model for the rows in flight.

    pace: what is known of the rows ahead; None: nothing.
    compiled: run forwards through torch.compile, padded to few shapes.
    rollout_tokens: tokens of one forward.
    Rows must enter in an order in which no new row is longer than the longest row in flight.
    """

    stores_blocks: ClassVar[bool] = False
    """Whether a forward that stores the finished block comes between two blocks."""

    whole_completion: ClassVar[bool] = False
    """Whether it gives hidden states of all positions of the completion, not of the active block alone."""

    def __init__(
        self,
        model: MaskedDiffusionLM,
        sampler: Sampler,
        prompts: Sequence[Sequence[int]],
        *,
        pace: Pace | None,
        compiled: bool,
        rollout_tokens: int,
    ):
        self.model, self.sampler, self.pace = model, sampler, pace
        self.prompts = [tuple(p) for p in prompts]
        self.compiled, self.rollout_tokens, self.block_length = compiled, rollout_tokens, sampler.block_length
        self.structure = model.sampling_structure(sampler.block_length)
        # Whether a forward that stores the finished block, or over a causal context the prompt, reveals the first token
        # of the next one; and whether a forward that stores the finished block comes between two blocks.
        self.reveals_first_token = self.structure.causal and sampler.first_token != "masked"
        self.runs_between_blocks = self.stores_blocks or self.reveals_first_token
        self.started: set[int] = set()  # rows that have had their first forward
        self.longest = self.width = max(len(p) for p in prompts)  # width: that of the longest prompt in flight
        # More than rollout_tokens run at once only with a cache, whose renewals are cut to it.
        self.piece_tokens = min(rollout_tokens, PIECE_TOKENS.get(model.device.type, PIECE_TOKENS["cpu"]))

    def rows_at_once(self, length: int) -> int:
        return max(1, self.rollout_tokens // length)

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
        return self.width - active.offset + block * self.block_length

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
            tokens, alike = ids[index, left:], min(lengths[piece]) == max(lengths[piece])
            if self.compiled:
                hidden = padded_hidden(self.model, tokens, mask[index, left:], cache, self.structure)
            else:
                real = None if alike else mask[index, left:]
                hidden = self.model.hidden(tokens, real, cache, structure=self.structure)
            states.append(hidden[origin[:, None], columns[rows] - left])
            order += served
        return torch.cat(states)[device_index(order, device).argsort()]


def device_index(index: Sequence[int], device: torch.device) -> torch.Tensor:
    """Indices [n] int64 on a device. Pinned memory lets a GPU copy them without a wait."""
    on_gpu = device.type == "cuda"
    return torch.tensor(index, dtype=torch.long, pin_memory=on_gpu).to(device, non_blocking=on_gpu)


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
