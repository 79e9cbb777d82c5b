"""Ragged token lists to padded tensors; rows to groups of bounded size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # reports need evenly_spaced, and no torch
    import torch

T = TypeVar("T")


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 [B, longest row] on the CPU, padded on the left so that all rows end at the
    same column."""
    import torch

    width = max(len(r) for r in rows)
    ids = torch.tensor([[pad_id] * (width - len(r)) + list(r) for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    return ids, mask


def pack_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group row indices so that rows x longest row stays within `budget` tokens (a longer row is a group by itself).

    Rows are taken in order of length, so a group holds similar lengths; ties are taken in order of index.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        # In order of length this row is the longest of the group.
        if groups and lengths[index] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def evenly_spaced(items: Sequence[T], n: int) -> list[T]:
    """At most n evenly spaced items, the first and the last among them (only the last if n is 1)."""
    if len(items) <= n:
        return list(items)
    if n == 1:
        return [items[-1]]
    return [items[i * (len(items) - 1) // (n - 1)] for i in range(n)]


def tensor_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance that hold tensors, by name."""
    import torch

    found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {name: field for name, field in found.items() if isinstance(field, torch.Tensor)}
