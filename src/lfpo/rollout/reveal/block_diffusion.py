"""The rules of SDAR and LLaDA2: a quota a step, spent on the best, on all above a threshold, or from left to right.

The quota is the schedule's count. Where fewer positions are masked than it says, all of them are revealed. (SDAR's code
then writes another position again, which may be one of the prompt.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lfpo.rollout.reveal.dream import probability
from lfpo.rollout.reveal.ranking import best
from lfpo.rollout.reveal.rule import Reveal, Rule, Step, scheduled_plan

if TYPE_CHECKING:
    import torch


def check_dynamic(sampler: Any) -> None:
    if sampler.threshold is None or not 0 < sampler.threshold <= 1:
        raise ValueError(
            f"threshold {sampler.threshold} must be above 0 and at most 1 with remasking 'low_confidence_dynamic'"
        )


def static(step: Step) -> Reveal:
    """The quota's best by the drawn token's probability after temperature, top_k and top_p."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.score, step.eligible, count), at_step)


def dynamic(step: Step) -> Reveal:
    """All positions whose score exceeds the threshold; the quota's best if these are fewer than the quota."""
    above = step.eligible & (step.score > step.sampler.threshold)
    return Reveal(above | best(step.score, step.eligible, _quota(step)))


def _quota(step: Step) -> torch.Tensor:
    """The schedule's count at the current step of the block, at least 1; [A] int64."""
    return step.counts[step.block_step.clamp(max=len(step.counts) - 1)].clamp(min=1)


def sequential(step: Step) -> Reveal:
    """The quota's leftmost positions."""
    at_step, count = step.next_scheduled()
    return Reveal(step.eligible & (step.eligible.cumsum(-1) <= count[:, None]), at_step)


STATIC = Rule(static, score=probability, plan=scheduled_plan)
DYNAMIC = Rule(dynamic, check_dynamic, reads=("threshold",), score=probability)
SEQUENTIAL = Rule(sequential, plan=scheduled_plan)
