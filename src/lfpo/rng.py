"""Random numbers keyed by what they are for, never by position in a batch or rank.

A row's noise depends on (seed, iteration, row, purpose) alone, so it does not change with batch size, block size,
number of ranks, or after a resume.
"""

from __future__ import annotations

import hashlib
import random

import torch


def key(*parts: int | str) -> int:
    """A stable 63-bit integer for the given parts (the same on every platform and Python version)."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator seeded by `key(*parts)`."""
    return torch.Generator(device=device).manual_seed(key(*parts))


def python_rng(*parts: int | str) -> random.Random:
    """A `random.Random` seeded by `key(*parts)`."""
    return random.Random(key(*parts))
