"""Random numbers keyed by purpose, never by position in a batch or rank.

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
