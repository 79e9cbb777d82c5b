"""Random numbers keyed by purpose, never by position in a batch or rank, and uniform noise on any device.

A row's noise depends on (seed, iteration, row, purpose) only, so it does not change with batch size, block size, number
of ranks, or after a resume.

torch is imported by the functions that need it, because settings and tasks are checked before it is loaded.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit integer


def key(*parts: int | str) -> int:
    """A 63-bit integer from the given parts, the same on every platform and Python version."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A torch generator of the CPU, seeded by `key(*parts)`."""
    import torch

    return torch.Generator().manual_seed(key(*parts))


def python_rng(*parts: int | str) -> random.Random:
    """A `random.Random` seeded by `key(*parts)`."""
    return random.Random(key(*parts))


def uniform(seed: torch.Tensor, *counters: torch.Tensor | int) -> torch.Tensor:
    """Float64 in [0, 1), a pure function of int64 seeds and counters (from 0), which broadcast to the result's shape;
    the same on every device. SplitMix64's finaliser (Steele et al. 2014), chained over the counters."""
    import torch

    x = _mix(seed)
    for counter in counters:
        if not isinstance(counter, torch.Tensor):
            # Filled on the device: a copy from the CPU would synchronise.
            counter = torch.full((), counter, dtype=torch.long, device=seed.device)
        x = _mix(x + GOLDEN * (counter + 1))
    return _shift(x, 11).double() * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser in int64, whose products wrap around as unsigned ones do."""
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned right shift; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
