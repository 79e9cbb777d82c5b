"""The forwards of a rollout: hidden states of each row's active block, from whole rows or what a cache leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from lfpo.models import MaskedDiffusionLM
from lfpo.models.kv_cache import KeyValueMemory
from lfpo.rollout.lanes import Lanes
from lfpo.rollout.sampler import SamplerConfig

# Tokens of one piece of a forward. A CPU is as fast with few as with many; a GPU needs many to be busy.
PIECE_TOKENS = {"cpu": 1024, "cuda": 16384}
LENGTH_BUCKET = 64  # compiled forwards come in multiples of this length


class Reader:
    """Runs the model for the rows in flight, and holds their keys and values when the sampler asks for a cache.

    Prompts come in an order in which no newcomer is longer than the longest row in flight.
    """

    def __init__(
        self,
        model: MaskedDiffusionLM,
        sampler: SamplerConfig,
        prompts: Sequence[Sequence[int]],
        share_first: bool,
        compiled: bool,
    ):
        assert sampler.block_length and sampler.gen_length
        self.model, self.sampler = model, sampler
        self.prompts = [tuple(p) for p in prompts]
        self.longest = max(len(p) for p in prompts)
        self.share_first, self.compiled = share_first, compiled
        self.block_length, self.blocks = sampler.block_length, sampler.gen_length // sampler.block_length
        self.started: set[int] = set()  # rows that have had their first forward
        self.memory = KeyValueMemory()
        self.width = self.longest  # prompt columns in use: those of the longest prompt in flight

    def keep(self, index: list[int]) -> None:
        """Only these of the rows in flight stay."""
        self.memory = self.memory.select(self._tensor(index))

    def hidden(self, lanes: Lanes, rows: Sequence[int]) -> list[torch.Tensor]:
        """States [A, block_length, D] of the active blocks; with guidance also those without the prompt.

        rows: lanes.row, known without asking the device. Counts `queries` and `age` of the lanes.
        """
        width = max(len(self.prompts[r]) for r in rows)
        self.memory = self.memory.trim(self.width - width) if width < self.width else self.memory
        self.width = width
        skip = self.longest - width
        ids = torch.cat([lanes.prompt_ids[:, skip:], lanes.tokens], dim=1)
        mask = torch.cat([lanes.prompt_mask[:, skip:], torch.ones_like(lanes.tokens)], dim=1)
        fresh = [r not in self.started for r in rows]
        self.started.update(rows)
        if self.sampler.cache != "none":
            return [self._cached(lanes, rows, fresh, ids, mask)]

        sole, owner = self._shared(range(len(rows)), rows, fresh)
        states = [self._whole(lanes, rows, ids, mask, sole)[owner]]
        if self.sampler.cfg_scale:
            blank = torch.cat([torch.full_like(lanes.prompt_ids[:, skip:], self.model.mask_id), lanes.tokens], dim=1)
            states.append(self._whole(lanes, rows, blank, mask, sole)[owner])
        lanes.queries += torch.where(lanes.done, 0, mask.sum(-1)) * len(states)
        return states

    def _whole(
        self, lanes: Lanes, rows: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, sole: list[int]
    ) -> torch.Tensor:
        """States of the active blocks of the rows `sole`, in pieces of like length, so that short ones are not padded
        to the longest."""
        columns, size = self._block_columns(lanes), ids.shape[1]
        lengths = [size - self.width + len(self.prompts[rows[i]]) for i in sole]
        states = []
        for piece in pieces(lengths, PIECE_TOKENS.get(ids.device.type, PIECE_TOKENS["cpu"])):
            index = self._tensor(sole[piece])
            start = size - max(lengths[piece])
            padded = min(lengths[piece]) < max(lengths[piece])
            if self.compiled:
                hidden = self._bucketed(ids[index, start:], mask[index, start:])
            else:
                hidden = self.model.hidden(ids[index, start:], mask[index, start:] if padded else None)
            states.append(hidden.gather(1, (columns[index] - start)[..., None].expand(-1, -1, hidden.shape[-1])))
        return torch.cat(states)

    def _bucketed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The compiled forward of rows padded to one of few shapes, and the part of it that was asked for."""
        size, length = ids.shape
        rows, left = bucket(size) - size, -length % LENGTH_BUCKET
        ids = F.pad(torch.cat([ids, ids[:1].expand(rows, -1)]), (left, 0), value=self.model.pad_id)
        mask = F.pad(torch.cat([mask, mask[:1].expand(rows, -1)]), (left, 0))
        return self.model.hidden(ids, mask, compiled=True)[:size, left:]

    def _shared(
        self, lanes: Sequence[int], rows: Sequence[int], fresh: Sequence[bool]
    ) -> tuple[list[int], torch.Tensor]:
        """Which of some lanes to run, and for each of them whose result is its own: rows with the same prompt that have
        revealed nothing yet are the same to the model."""
        sole: list[int] = []
        first: dict[tuple[int, ...] | int, int] = {}
        owner = []
        for lane in lanes:
            same = self.prompts[rows[lane]] if self.share_first and fresh[lane] else lane
            if same not in first:
                first[same] = len(sole)
                sole.append(lane)
            owner.append(first[same])
        return sole, self._tensor(owner)

    def _block_columns(self, lanes: Lanes) -> torch.Tensor:
        """Columns of each row's active block, [A, block_length]; of its last block where the row is done."""
        start = self.width + lanes.block.clamp(max=self.blocks - 1) * self.block_length
        return start[:, None] + torch.arange(self.block_length, device=start.device)

    def _cached(
        self, lanes: Lanes, rows: Sequence[int], fresh: Sequence[bool], ids: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Whole rows where keys and values must be renewed, else the active block (and, for "prefix", what follows)."""
        refresh = self.sampler.cache_refresh
        due = lanes.age < 0
        if refresh is not None:
            due |= lanes.age + 1 >= refresh
        renewed = due.tolist()  # the one wait for the device in a step: which rows run whole
        whole = [i for i, r in enumerate(renewed) if r]
        rest = [i for i, r in enumerate(renewed) if not r]
        columns = self._block_columns(lanes)
        parts = []
        if whole:
            run, owner = self._shared(whole, rows, fresh)
            sole = self._tensor(run)
            memory = KeyValueMemory()
            hidden = self.model.hidden(ids[sole], mask[sole], memory)
            self.memory.put(self._tensor(whole), memory.select(owner), len(rows))
            parts.append(hidden[owner[:, None], columns[self._tensor(whole)]])
        if rest:
            index = self._tensor(rest)
            start = columns[index, 0]
            size = self.block_length
            if self.sampler.cache == "prefix":
                size = ids.shape[1] - int(start.min())
            memory = self.memory if not whole else self.memory.select(index)
            hidden = self.model.window_hidden(ids[index], mask[index], start, size, memory)
            if whole:
                self.memory.put(index, memory, len(rows))
            parts.append(hidden[:, : self.block_length])
        self._count(lanes, due, columns[:, 0], mask)
        return torch.cat(parts)[self._tensor(whole + rest).argsort()]

    def _count(self, lanes: Lanes, due: torch.Tensor, start: torch.Tensor, mask: torch.Tensor) -> None:
        """Tokens run for each row, and forwards since its last renewal."""
        window = self.block_length if self.sampler.cache == "dual" else mask.shape[1] - start
        window = window + int(self.model.family.shift)
        lanes.queries += torch.where(lanes.done, 0, torch.where(due, mask.sum(-1), window))
        lanes.age = torch.where(due, 0, lanes.age + 1)

    def _tensor(self, index: Sequence[int]) -> torch.Tensor:
        """On the model's device, without waiting for a GPU: from pinned memory it fetches by itself."""
        on_gpu = self.model.device.type == "cuda"
        return torch.tensor(index, dtype=torch.long, pin_memory=on_gpu).to(self.model.device, non_blocking=on_gpu)


def bucket(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def pieces(lengths: Sequence[int], budget: int) -> list[slice]:
    """Consecutive runs of rows whose number times longest stays within `budget` tokens (a longer row stands alone)."""
    found, start, longest = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and max(longest, length) * (i + 1 - start) > budget:
            found.append(slice(start, i))
            start, longest = i, 0
        longest = max(longest, length)
    return [*found, slice(start, len(lengths))]
