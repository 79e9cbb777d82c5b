"""Evenly spaced items of a long list, for reports and samples."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def evenly_spaced(items: Sequence[T], n: int) -> list[T]:
    """At most n evenly spaced items, the first and the last among them (only the last if n is 1)."""
    if len(items) <= n:
        return list(items)
    if n == 1:
        return [items[-1]]
    return [items[i * (len(items) - 1) // (n - 1)] for i in range(n)]
