"""The forwards of a rollout: hidden states of each row's active block, from whole rows or with a key-value cache."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence

import torch
from torch.nn import functional as F

from lfpo.models import MaskedDiffusionLM
from lfpo.models.kv_cache import KeyValueCache, columns_for
from lfpo.models.structure import FULL, Structure
from lfpo.rollout.pace import Pace
from lfpo.rollout.rows import ActiveRows
from lfpo.rollout.sampler import SamplerConfig

# Tokens in one piece of a forward, by device. A CPU is as fast with few tokens as with many; a GPU needs many.
PIECE_TOKENS = {"cpu": 1024, "cuda": 16384}
LENGTH_BUCKET = 64  # compiled forwards are padded to multiples of this length
# What a forward costs a GPU besides its tokens, in tokens: it reads all weights, in the time of computing some 200.
FORWARD_TOKENS = 256
# With a cache, rollout_tokens bounds the tokens of a forward's windows; keys and values are held for this many times
# rollout_tokens at most.
CACHED = 4


def rows_in_flight(length: int, sampler: SamplerConfig, rollout_tokens: int, stores: bool = False) -> int:
    """Rows of `length` tokens that run at once. stores: whether finished blocks are stored (see
    lfpo.rollout.stored_blocks)."""
    if sampler.cache == "none" and not stores:
        return max(1, rollout_tokens // length)
    window = sampler.block_length if sampler.cache == "dual" or stores else sampler.gen_length
    assert window
    return max(1, min(rollout_tokens // window, CACHED * rollout_tokens // length))


def cache_capacity(lengths: Sequence[int], sampler: SamplerConfig, rollout_tokens: int, stores: bool = False) -> int:
    """Tokens that a cache must hold for rows of these lengths, which are run longest first. stores: see
    `rows_in_flight`."""
    longest_first = enumerate(sorted(lengths, reverse=True))
    return max(
        min(rows_in_flight(length, sampler, rollout_tokens, stores), len(lengths) - i) * columns_for(length)
        for i, length in longest_first
    )


class BlockForward:
    """Runs the model for the rows in flight, and holds their keys and values if the sampler asks for a cache.

    share_first: rows with the same prompt share their first forward.
    compiled: run forwards, whole ones and windows, through torch.compile, padded to few shapes.
    whole: give hidden states of the whole completion, as if it were the active block (without a cache only).
    Rows must enter in an order in which no new row is longer than the longest row in flight.
    """

    def __init__(
        self,
        model: MaskedDiffusionLM,
        sampler: SamplerConfig,
        prompts: Sequence[Sequence[int]],
        share_first: bool,
        compiled: bool,
        pace: Pace,
        *,
        rollout_tokens: int,
        whole: bool = False,
    ):
        assert sampler.block_length and sampler.gen_length
        self.model, self.sampler = model, sampler
        self.prompts = [tuple(p) for p in prompts]
        self.longest = max(len(p) for p in prompts)
        self.share_first, self.compiled, self.pace = share_first, compiled, pace
        self.block_length = sampler.gen_length if whole else sampler.block_length
        self.blocks, self.whole = sampler.gen_length // self.block_length, whole
        self.structure = Structure(sampler.block_length) if model.block_length else FULL
        self.started: set[int] = set()  # rows that have had their first forward
        totals = [len(p) + sampler.gen_length for p in prompts]
        self.cache = KeyValueCache(cache_capacity(totals, sampler, rollout_tokens))
        # More than rollout_tokens run at once only with a cache, whose renewals are cut to it.
        self.piece_tokens = min(rollout_tokens, PIECE_TOKENS.get(model.device.type, PIECE_TOKENS["cpu"]))
        self.width = self.longest  # prompt columns in use: those of the longest prompt in flight

    def keep(self, index: list[int]) -> None:
        """Drop the cache of all rows in flight but those at these places."""
        self.cache.keep(device_index(index, self.model.device))

    def hidden(self, active: ActiveRows, row_ids: Sequence[int]) -> list[torch.Tensor]:
        """Hidden states [A, block_length, D] of the active blocks; with guidance, also those without the prompt.

        row_ids: active.row as a list, so that the device need not be asked. Updates active.queries and active.age.
        """
        self.width = max(len(self.prompts[r]) for r in row_ids)
        skip = self.longest - self.width
        ids = torch.cat([active.prompt_ids[:, skip:], active.tokens], dim=1)
        mask = torch.cat([active.prompt_mask[:, skip:], torch.ones_like(active.tokens)], dim=1)
        fresh = [r not in self.started for r in row_ids]
        self.started.update(row_ids)
        if self.sampler.cache != "none":
            return [self._cached(active, row_ids, fresh, ids, mask)]

        run, origin = self._shared(range(len(row_ids)), row_ids, fresh)
        source = device_index(origin, self.model.device)
        states = [self._whole(active, row_ids, ids, mask, run)[source]]
        if self.sampler.cfg_scale:
            blank = torch.cat([torch.full_like(active.prompt_ids[:, skip:], self.model.mask_id), active.tokens], dim=1)
            states.append(self._whole(active, row_ids, blank, mask, run)[source])
        active.queries += torch.where(active.done, 0, mask.sum(-1)) * len(states)
        return states

    def _whole(
        self, active: ActiveRows, row_ids: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, run: list[int]
    ) -> torch.Tensor:
        """Hidden states of the active blocks of the rows at the places `run`.

        Runs pieces of rows of similar length, so that short rows are not padded to the longest.
        """
        columns, size = self._block_columns(active), ids.shape[1]
        lengths = [size - self.width + len(self.prompts[row_ids[i]]) for i in run]
        states = []
        for piece in self._cut(lengths):
            index = device_index(run[piece], self.model.device)
            start = size - max(lengths[piece])
            padded = min(lengths[piece]) < max(lengths[piece])
            if self.compiled:
                hidden = self._bucketed(ids[index, start:], mask[index, start:])
            else:
                real = mask[index, start:] if padded else None
                hidden = self.model.hidden(ids[index, start:], real, structure=self.structure)
            states.append(hidden.gather(1, (columns[index] - start)[..., None].expand(-1, -1, hidden.shape[-1])))
        return torch.cat(states)

    def _cut(self, lengths: Sequence[int]) -> list[slice]:
        """Rows of these lengths in pieces."""
        return cut(lengths, self.piece_tokens, self.model.device, self.compiled)

    def _bucketed(self, ids: torch.Tensor, mask: torch.Tensor, cache: KeyValueCache | None = None) -> torch.Tensor:
        """Hidden states of a compiled forward, which is padded to one of few shapes; the padding is cut off again."""
        size, length = ids.shape
        left = -length % LENGTH_BUCKET
        ids, mask = padded(ids, mask, bucket(size), left, self.model.pad_id)
        return self.model.hidden(ids, mask, cache, structure=self.structure, compiled=True)[:size, left:]

    def _shared(
        self, places: Sequence[int], row_ids: Sequence[int], fresh: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """The places to run, and for each of `places` the index of its result among them.

        Rows with the same prompt that have revealed nothing yet have the same input, so one of them is run.
        """
        run: list[int] = []
        first: dict[Hashable, int] = {}
        source = []
        for place in places:
            same: Hashable = self.prompts[row_ids[place]] if self.share_first and fresh[place] else place
            if same not in first:
                first[same] = len(run)
                run.append(place)
            source.append(first[same])
        return run, source

    def _block_columns(self, active: ActiveRows) -> torch.Tensor:
        """Columns of each row's active block, [A, block_length]; of its last block if the row is done."""
        block = torch.minimum(active.block, active.blocks - 1) * (not self.whole)
        start = self.width - active.offset + block * self.block_length
        return start[:, None] + torch.arange(self.block_length, device=start.device)

    def _cached(
        self, active: ActiveRows, row_ids: Sequence[int], fresh: Sequence[bool], ids: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states of the active blocks: from whole rows where the cache is renewed, else from the active block
        (and, for "prefix", what follows it) and the cache."""
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
        self.cache.fit(*held(self.cache, len(row_ids), ids.shape[1], self.compiled))
        columns = self._block_columns(active)
        hidden = self._renewed(whole, columns, row_ids, fresh, ids, mask) if whole else None
        if not all(renewed):
            window = self.block_length
            if self.sampler.cache == "prefix":
                first = min(block for block, r in zip(blocks, renewed, strict=True) if not r)
                window = (self.blocks - first) * self.block_length
            # All rows take part, so that the cache is read and written in place. Rows that were just renewed read and
            # write its scratch column only.
            start = columns[:, 0]
            if whole:
                start = start.index_fill(0, device_index(whole, self.model.device), ids.shape[1] + 1)
            found = run_window(self.model, self.cache, ids, mask, start, window, self.compiled)[:, : self.block_length]
            hidden = found if hidden is None else found.index_copy(0, device_index(whole, self.model.device), hidden)
        assert hidden is not None
        self._count(active, due, columns[:, 0], mask)
        return hidden

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


def held(cache: KeyValueCache, size: int, length: int, compiled: bool) -> tuple[int, int]:
    """Rows and tokens a row that a cache holds for `size` rows of `length` tokens; compiled windows have few shapes."""
    if not compiled:
        return size, length
    columns = columns_for(length)
    return max(size, min(bucket(size), cache.capacity // columns)), columns - 1


def run_window(
    model: MaskedDiffusionLM,
    cache: KeyValueCache,
    ids: torch.Tensor,
    mask: torch.Tensor,
    start: torch.Tensor,
    width: int,
    compiled: bool,
) -> torch.Tensor:
    """Hidden states [A, width, D] of windows of `width` tokens, from columns `start` on, in a cache that
    fits `held`."""
    size, length = ids.shape
    if compiled:
        rows, columns = held(cache, size, length, compiled)
        left = columns - length
        ids, mask = padded(ids, mask, rows, left, model.pad_id)
        start = F.pad(start + left, (0, rows - size), value=columns + 1)  # added rows write scratch columns only
    return model.window_hidden(ids, mask, start, width, cache, compiled=compiled)[:size]


def bucket(rows: int) -> int:
    """The least number of rows that is at least `rows` and a power of two or one and a half times one."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


@functools.lru_cache(64)
def cheapest_pieces(lengths: tuple[int, ...], budget: int, step: int) -> list[slice]:
    """Consecutive slices of rows whose forwards together compute the fewest tokens, padding included, where a forward
    costs FORWARD_TOKENS besides. Each is within `budget` tokens; a longer row stands alone.

    step: 1, or LENGTH_BUCKET for forwards that are padded to multiples of it and to `bucket` rows.
    """
    best: list[tuple[int, int]] = [(0, 0)]  # for the first n rows: the cost, and where the last piece starts
    for end in range(1, len(lengths) + 1):
        found, longest = [], 0
        for start in range(end - 1, -1, -1):
            longest = max(longest, lengths[start])
            rows = end - start
            if rows > 1 and longest * rows > budget:
                break
            tokens = longest * rows if step == 1 else bucket(rows) * (longest + -longest % step)
            found.append((best[start][0] + tokens + FORWARD_TOKENS, start))
        best.append(min(found))
    slices, end = [], len(lengths)
    while end:
        slices.append(slice(best[end][1], end))
        end = best[end][1]
    return slices[::-1]


def cut(lengths: Sequence[int], budget: int, device: torch.device, compiled: bool = False) -> list[slice]:
    """Rows of these lengths in pieces: on a CPU as few as fit, on a GPU those that take the least time."""
    if compiled:
        return cheapest_pieces(tuple(lengths), budget, LENGTH_BUCKET)
    if device.type == "cuda":
        return cheapest_pieces(tuple(lengths), budget, 1)
    return pieces(lengths, budget)


def pieces(lengths: Sequence[int], budget: int) -> list[slice]:
    """Consecutive slices of rows, each with rows x longest row within `budget` tokens; a longer row stands alone."""
    found, start, longest = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and max(longest, length) * (i + 1 - start) > budget:
            found.append(slice(start, i))
            start, longest = i, 0
        longest = max(longest, length)
    return [*found, slice(start, len(lengths))]
