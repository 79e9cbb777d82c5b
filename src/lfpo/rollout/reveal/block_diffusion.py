"""The rules of SDAR and LLaDA2: a quota a step, spent on the best, on all above a threshold, or from left to right; and
the token editing of LLaDA2.1.

The quota is the schedule's count. Where fewer positions are masked than it says, all of them are revealed. (SDAR's code
then writes another position again, which may be one of the prompt.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lfpo.base.checks import in_unit_interval, not_negative
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
    in_unit_interval(sampler, "editing_threshold")
    not_negative(sampler, "max_post_steps")
    if sampler.max_post_steps != type(sampler).max_post_steps and not sampler.edits:
        raise ValueError(f"max_post_steps {sampler.max_post_steps} needs editing_threshold")
    if sampler.edits and sampler.stops_at_eos:
        raise ValueError(
            f"early_stop {sampler.early_stop!r} does not go with editing_threshold, because an EOS may still be "
            "edited; a row ends after the block with its first EOS anyway, so leave it out"
        )


def static(step: Step) -> Reveal:
    """The quota's best by the drawn token's probability after temperature, top_k and top_p."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.score, step.eligible, count), at_step)


def dynamic(step: Step) -> Reveal:
    """All positions whose score exceeds the threshold; the quota's best if these are fewer than the quota.

    With editing_threshold also LLaDA2.1's token editing: a revealed token is replaced where another one is drawn whose
    score exceeds that threshold. A block is complete after a forward that began without masks and edits nothing, or
    after max_post_steps forwards that began without masks.
    """
    above = step.eligible & (step.score > step.sampler.threshold)
    positions = above | best(step.score, step.eligible, _quota(step))
    if step.revealed is None:
        return Reveal(positions)
    edits = step.revealed.editable & (step.token != step.revealed.shown)
    edits &= step.score > step.sampler.editing_threshold
    post_step = step.revealed.post_step
    goes_on = (post_step < step.sampler.max_post_steps) & ((post_step == 0) | edits.any(-1))
    return Reveal(positions, edits=edits, goes_on=goes_on)


def _quota(step: Step) -> torch.Tensor:
    """The schedule's count at the current step of the block, at least 1; [A] int64."""
    return step.counts[step.block_step.clamp(max=len(step.counts) - 1)].clamp(min=1)


def sequential(step: Step) -> Reveal:
    """The quota's leftmost positions."""
    at_step, count = step.next_scheduled()
    return Reveal(step.eligible & (step.eligible.cumsum(-1) <= count[:, None]), at_step)


STATIC = Rule(static, score=probability, plan=scheduled_plan)
DYNAMIC = Rule(dynamic, check_dynamic, reads=("threshold", "editing_threshold", "max_post_steps"), score=probability)
SEQUENTIAL = Rule(sequential, plan=scheduled_plan)
