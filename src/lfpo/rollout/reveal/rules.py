"""The reveal rules, and their registry REVEAL_RULES.

LLaDA's (arXiv 2502.09992), Dream's (2508.15487) and SDAR's follow a schedule, and so does that of Mask-Aware policy
gradients (2607.15200); those of Fast-dLLM (2505.22618), EB-Sampler (2505.24857) and SLIM-RL (2607.00208) decide how
many positions a step reveals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lfpo.rollout.reveal import dream
from lfpo.rollout.reveal.rule import Reveal, Rule, Step, before_first, best, ranked

if TYPE_CHECKING:  # a sampler's settings are checked before torch is loaded
    import torch

# Rules that reveal as many positions as the schedule says. In SDAR's and LLaDA2's, which reveal all that are left where
# these are fewer, SDAR's code then writes another position again, which may be one of the prompt.


def scheduled_plan(
    sampler: Any, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Rule.plan of rules that reveal what the schedule says, or what is left in the block if that is less."""
    of_size = {size: _spent(counts, size) for row in sizes for size in row}
    return [[of_size[size] for size in row] for row in sizes]


def _spent(counts: Sequence[int], size: int) -> list[int]:
    revealed = []
    for count in counts:
        if count and size:
            revealed.append(min(count, size))
            size -= revealed[-1]
    return revealed


def probability(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Rule.score: the probability of the drawn token."""
    return p_TV.gather(1, token_T[:, None]).squeeze(1)


def highest_score(step: Step) -> Reveal:
    """The positions with the best score: that of the rule, or the drawn token's confidence."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.score, step.eligible, count), at_step)


def random(step: Step) -> Reveal:
    """Random positions."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.noise(), step.eligible, count), at_step)


def sequential(step: Step) -> Reveal:
    """The leftmost positions."""
    at_step, count = step.next_scheduled()
    return Reveal(step.eligible & (step.eligible.cumsum(-1) <= count[:, None]), at_step)


# Rules that decide how many positions a step reveals.


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


def _scored(score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Rule:
    """One of Dream's scored algorithms."""
    return Rule(dream.dream, reads=("alg_temp",), schedule="dream", score=score, plan=scheduled_plan)


REVEAL_RULES: dict[str, Rule] = {
    "low_confidence": Rule(highest_score, plan=scheduled_plan),
    "random": Rule(random, plan=scheduled_plan),
    "low_confidence_static": Rule(highest_score, score=probability, plan=scheduled_plan),
    "low_confidence_dynamic": Rule(
        dynamic, check_dynamic, reads=("threshold", "editing_threshold", "max_post_steps"), score=probability
    ),
    "sequential": Rule(sequential, plan=scheduled_plan),
    "origin": Rule(dream.origin, dream.check_origin, schedule="dream", plan=dream.origin_plan),
    "maskgit_plus": _scored(probability),
    "topk_margin": _scored(dream.margin),
    "entropy": _scored(dream.negative_entropy),
    "plackett_luce": Rule(dream.plackett_luce, dream.check_plackett_luce, reads=("alg_temp",), plan=scheduled_plan),
    "threshold": Rule(threshold, needs("threshold"), reads=("threshold",), schedule=None),
    "threshold_leftmost": Rule(threshold_leftmost, needs("threshold"), reads=("threshold",), schedule=None),
    "tau_budget": Rule(tau_budget, needs("threshold"), reads=("threshold",), score=probability),
    "factor": Rule(factor, needs("factor"), reads=("factor",), schedule=None),
    "entropy_bound": Rule(entropy_bound, needs("entropy_bound"), reads=("entropy_bound",), schedule=None),
}
