"""Dream's "origin" (arXiv 2508.15487): each position is revealed independently, with the schedule's probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lfpo.base.rng import uniform
from lfpo.rollout.reveal.rule import PLAN, Reveal, Rule, Step

if TYPE_CHECKING:
    import torch


def check(sampler: Any) -> None:
    if sampler.schedule not in (None, "dream"):
        raise ValueError(f"alg 'origin' follows Dream's schedule; schedule {sampler.schedule!r} does not go with it")


def reveal(step: Step) -> Reveal:
    """All positions whose step comes next. Each position's step depends on the row's seed only."""
    import torch

    steps = len(step.counts)
    due = torch.where(step.eligible, origin_steps(step.fixed_noise(), steps, step.sampler.eps), steps)
    at_step = due.amin(-1)
    return Reveal(step.eligible & (due == at_step[:, None]), at_step)


def origin_steps(uniform: torch.Tensor, steps: int, eps: float) -> torch.Tensor:
    """The step of the block that reveals each position, int64, from uniform numbers in [0, 1); any shape.

    Dream reveals a masked position with probability 1 - t_next / t at each step, and all at the last one. So it is
    still masked after step i with probability t_(i + 1) = 1 - (i + 1)(1 - eps) / steps, independently of the others.
    """
    return ((1 - uniform) / (1 - eps) * steps).long().clamp(max=steps - 1)


def plan(
    sampler: Any, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Rule.plan: positions of a block that share a step are revealed together; noise is the same on every device."""
    import torch

    noise = uniform(torch.tensor(list(seeds))[:, None], PLAN, torch.arange(max(sum(row) for row in sizes)))
    due = origin_steps(noise, len(counts), sampler.eps)
    rows = [own[: sum(row)].split(list(row)) for own, row in zip(due, sizes, strict=True)]
    return [[block.unique(return_counts=True)[1].tolist() for block in row] for row in rows]


ORIGIN = Rule(reveal, check, schedule="dream", plan=plan)
