"""Eligible positions in order of a score, for the rules that reveal the best ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def ranked(score_AC: torch.Tensor, eligible_AC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns in descending order of score, eligible ones first, and the rank of each column; both [A, C] int64.

    Ties go to the left.
    """
    import torch

    score = score_AC.masked_fill(~eligible_AC, -torch.inf)
    order = score.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(1, order, place)


def best(score_AC: torch.Tensor, eligible_AC: torch.Tensor, count_A: torch.Tensor) -> torch.Tensor:
    """The count_A[a] eligible positions of each row with the highest score, [A, C] bool; ties go to the left."""
    _, rank = ranked(score_AC, eligible_AC)
    return eligible_AC & (rank < count_A[:, None])


def before_first(true_AC: torch.Tensor) -> torch.Tensor:
    """How many columns come before the first True one, [A] int64; C in a row without one."""
    return (true_AC.int().cumsum(-1) == 0).sum(-1)
