"""Reveal rules that decide by the confidence of what was drawn how many positions a step reveals: Fast-dLLM's (arXiv
2505.22618), EB-Sampler's (2505.24857), SDAR's dynamic one, and SLIM-RL's (2607.00208)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lfpo.rollout.reveal.rule import Reveal, Step, before_first, best, ranked

if TYPE_CHECKING:
    import torch


def needs(key: str) -> Callable[[Any], None]:
    """Rule.check: the key must be given."""

    def check(sampler: Any) -> None:
        if getattr(sampler, key) is None:
            raise ValueError(f"{key} None: the reveal rule {sampler.rule_name!r} needs a number")

    return check


def threshold(step: Step) -> Reveal:
    """Positions with confidence >= threshold, and always each row's most confident one."""
    rank = ranked(step.confidence, step.eligible)[1]
    return Reveal(step.eligible & ((step.confidence >= step.sampler.threshold) | (rank == 0)))


def threshold_leftmost(step: Step) -> Reveal:
    """Positions with confidence >= threshold; in a row without any, the leftmost eligible one.

    In Fork-dLLM (arXiv 2609.39859), training on rollouts of `threshold` collapsed, and on these it did not.
    """
    above = step.eligible & (step.confidence >= step.sampler.threshold)
    first = step.eligible & (step.eligible.cumsum(-1) == 1)
    return Reveal(above | (first & ~above.any(-1, keepdim=True)))


def factor(step: Step) -> Reveal:
    """The n most confident positions, for the largest n whose n-th has confidence >= 1 - factor / (n + 1).

    At least one. Fast-dLLM's code also reveals the next position, which fails this test.
    """
    order, rank = ranked(step.confidence, step.eligible)
    n = order.new_ones(order.shape[1]).cumsum(0)
    fails = step.confidence.gather(1, order) < 1 - step.sampler.factor / (n + 1)
    fails[:, 0] = False
    return Reveal(step.eligible & (rank < before_first(fails)))


def entropy_bound(step: Step) -> Reveal:
    """The n positions of least entropy, for the largest n whose entropies, without the largest, sum to at most
    entropy_bound."""
    order, rank = ranked(-step.entropy, step.eligible)
    ordered = step.entropy.gather(1, order)
    others = ordered.cumsum(-1) - ordered  # ascending, so the n-th is the largest; 0 for the first
    return Reveal(step.eligible & (rank < before_first(others > step.sampler.entropy_bound)))


def dynamic(step: Step) -> Reveal:
    """All positions whose score exceeds the threshold; where these are fewer than the schedule's count (at least 1), so
    many of the best.

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


def tau_budget(step: Step) -> Reveal:
    """SLIM-RL's decoder: of the positions whose score exceeds the threshold, the n best, for the largest n whose risks
    1 - score sum to at most 1 - threshold; the schedule's count (at least 1) of the best where that is more."""
    sure = step.eligible & (step.score > step.sampler.threshold)
    order, rank = ranked(step.score, sure)
    risk = (1 - step.score).gather(1, order).cumsum(-1).gather(1, rank)  # of a position and of those before it
    within = sure & (risk <= 1 - step.sampler.threshold)
    return Reveal(within | best(step.score, step.eligible, _quota(step)))


def _quota(step: Step) -> torch.Tensor:
    """The schedule's count at the current step of the block, at least 1; [A] int64."""
    return step.counts[step.block_step.clamp(max=len(step.counts) - 1)].clamp(min=1)


def check_dynamic(sampler: Any) -> None:
    needs("threshold")(sampler)
    if sampler.max_post_steps != type(sampler).max_post_steps and not sampler.edits:
        raise ValueError(f"max_post_steps {sampler.max_post_steps} needs editing_threshold")
    if sampler.edits and sampler.stops_at_eos:
        raise ValueError(
            f"early_stop {sampler.early_stop!r} does not go with editing_threshold, because an EOS may still be "
            "edited; a row ends after the block with its first EOS anyway, so leave it out"
        )
