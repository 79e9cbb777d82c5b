"""Dream's reveal rules (arXiv 2508.15487), and the one of Mask-Aware policy gradients (2607.15200)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lfpo.base.rng import uniform
from lfpo.rollout.reveal.rule import PLAN, Reveal, Step, best

if TYPE_CHECKING:
    import torch


def dream(step: Step) -> Reveal:
    """The positions with the best scores; with alg_temp, drawn by softmax(score / alg_temp) without replacement.

    Ties go to the left. With top_p they are common: all positions whose nucleus is one token score exactly 1. Dream's
    code ranks them by torch.topk, which leaves the order of ties open.
    """
    return _drawn(step, step.score)


def plackett_luce(step: Step) -> Reveal:
    """Positions drawn without replacement, in proportion to c^(1 / alg_temp), with c the drawn token's confidence.

    Of the two forms of the public code, both off in its recipes, one is `alg: maskgit_plus`; this is the other, which
    takes the most probable token's probability for c.
    """
    return _drawn(step, step.confidence.clamp(min=1e-300).log())


def check_plackett_luce(sampler: Any) -> None:
    if not sampler.alg_temp:
        raise ValueError("alg_temp 0.0: the reveal rule 'plackett_luce' needs a number above 0")


def _drawn(step: Step, score: torch.Tensor) -> Reveal:
    """The schedule's count of positions with the best scores, or drawn by them at alg_temp."""
    if step.sampler.alg_temp:
        # The k highest of score / alg_temp + Gumbel noise are k draws without replacement.
        score = score / step.sampler.alg_temp - (-step.noise().clamp(min=1e-300).log()).log()
    at_step, count = step.next_scheduled()
    return Reveal(best(score, step.eligible, count), at_step)


def margin(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Rule.score: the probability of the most probable token minus that of the second."""
    first, second = p_TV.topk(2, dim=-1).values.unbind(-1)
    return first - second


def negative_entropy(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Rule.score: minus the entropy in nats, with the small constant of Dream's code."""
    return (p_TV * (p_TV + 1e-10).log()).sum(-1)


# Dream's "origin": each position by itself, with the schedule's probability.


def origin(step: Step) -> Reveal:
    """All positions whose step comes next. Each position's step depends on the row's seed only."""
    steps = len(step.counts)
    due = origin_steps(step.fixed_noise(), steps, step.sampler.eps).masked_fill(~step.eligible, steps)
    at_step = due.amin(-1)
    return Reveal(step.eligible & (due == at_step[:, None]), at_step)


def origin_steps(uniform: torch.Tensor, steps: int, eps: float) -> torch.Tensor:
    """The step of the block that reveals each position, int64, from uniform numbers in [0, 1); any shape.

    Dream reveals a masked position with probability 1 - t_next / t at each step, and all at the last one. So it is
    still masked after step i with probability t_(i + 1) = 1 - (i + 1)(1 - eps) / steps, independently of the others.
    """
    return ((1 - uniform) / (1 - eps) * steps).long().clamp(max=steps - 1)


def origin_plan(
    sampler: Any, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Rule.plan: positions of a block that share a step are revealed together; noise is the same on every device."""
    import torch

    noise = uniform(torch.tensor(list(seeds))[:, None], PLAN, torch.arange(max(sum(row) for row in sizes)))
    due = origin_steps(noise, len(counts), sampler.eps)
    rows = [own[: sum(row)].split(list(row)) for own, row in zip(due, sizes, strict=True)]
    return [[block.unique(return_counts=True)[1].tolist() for block in row] for row in rows]


def check_origin(sampler: Any) -> None:
    if sampler.schedule not in (None, "dream"):
        raise ValueError(f"alg 'origin' follows Dream's schedule; schedule {sampler.schedule!r} does not go with it")
