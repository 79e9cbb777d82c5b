"""How the rows of a forward are put together: how many at once, in which pieces, padded to which shapes."""

import functools
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from lfpo.config.sampler import SamplerConfig
from lfpo.models.kv_cache import columns_for

# Tokens in one piece of a forward, by device. A CPU is as fast with few tokens as with many; a GPU needs many.
PIECE_TOKENS = {"cpu": 1024, "cuda": 16384}
LENGTH_BUCKET = 64  # compiled forwards are padded to multiples of this length
# What a forward costs besides its tokens, in tokens: a GPU reads all weights, in the time of computing some 200.
FORWARD_TOKENS = 256
# With a cache, rollout_tokens bounds the tokens of a forward's windows; keys and values are held for this many times
# rollout_tokens at most.
CACHED = 4


def rows_in_flight(length: int, sampler: SamplerConfig, rollout_tokens: int, stores: bool = False) -> int:
    """Rows of `length` tokens that run at once. stores: whether finished blocks are stored (see
    lfpo.rollout.cached.StoredBlocks)."""
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
