"""The registry REVEAL_RULES, and the rules of LLaDA (arXiv 2502.09992) and SDAR, which follow a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lfpo.rollout.reveal import published
from lfpo.rollout.reveal.rule import Proposal, Reveal, Rule, best

if TYPE_CHECKING:  # a sampler's settings are checked before torch is loaded
    import torch

# Where fewer positions are left than the schedule says, all of them are revealed. SDAR's code then writes another
# position again, which may be one of the prompt.


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


def highest_score(step: Proposal) -> Reveal:
    """The positions with the best score: that of the rule, or the drawn token's confidence."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.score, step.eligible, count), at_step)


def random(step: Proposal) -> Reveal:
    """Random positions."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.noise(), step.eligible, count), at_step)


def sequential(step: Proposal) -> Reveal:
    """The leftmost positions."""
    at_step, count = step.next_scheduled()
    return Reveal(step.eligible & (step.eligible.cumsum(-1) <= count[:, None]), at_step)


def _scored(score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Rule:
    """One of Dream's scored algorithms."""
    return Rule(published.dream, reads=("alg_temp",), schedule="dream", score=score, plan=scheduled_plan)


REVEAL_RULES: dict[str, Rule] = {
    "low_confidence": Rule(highest_score, plan=scheduled_plan),
    "random": Rule(random, plan=scheduled_plan),
    "low_confidence_static": Rule(highest_score, score=probability, plan=scheduled_plan),
    "low_confidence_dynamic": Rule(
        published.dynamic,
        published.check_dynamic,
        reads=("threshold", "editing_threshold", "max_post_steps"),
        score=probability,
    ),
    "sequential": Rule(sequential, plan=scheduled_plan),
    "origin": Rule(published.origin, published.check_origin, schedule="dream", plan=published.origin_plan),
    "maskgit_plus": _scored(probability),
    "topk_margin": _scored(published.margin),
    "entropy": _scored(published.negative_entropy),
    "plackett_luce": Rule(
        published.plackett_luce, published.check_plackett_luce, reads=("alg_temp",), plan=scheduled_plan
    ),
    "threshold": Rule(published.threshold, published.needs("threshold"), reads=("threshold",), schedule=None),
    "threshold_leftmost": Rule(
        published.threshold_leftmost, published.needs("threshold"), reads=("threshold",), schedule=None
    ),
    "tau_budget": Rule(published.tau_budget, published.needs("threshold"), reads=("threshold",), score=probability),
    "factor": Rule(published.factor, published.needs("factor"), reads=("factor",), schedule=None),
    "entropy_bound": Rule(
        published.entropy_bound, published.needs("entropy_bound"), reads=("entropy_bound",), schedule=None
    ),
}
