"""The registry of rules, and the rules of LLaDA (arXiv 2502.09992) and SDAR, which follow a schedule."""

from collections.abc import Callable, Sequence

import torch

from lfpo.config.reveal import REVEAL_RULES
from lfpo.config.sampler import SamplerConfig
from lfpo.rollout.reveal import published
from lfpo.rollout.reveal.rule import Plan, Proposal, Reveal, Rule, Score, best

# Where fewer positions are left than the schedule says, all of them are revealed. SDAR's code then writes another
# position again, which may be one of the prompt.


def scheduled_plan(
    sampler: SamplerConfig, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
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


# Name -> rule, score of drawn tokens, plan (see Rule). The keys of each are in lfpo.config.reveal.
_RULES: dict[str, tuple[Callable[[Proposal], Reveal], Score | None, Plan | None]] = {
    "low_confidence": (highest_score, None, scheduled_plan),
    "random": (random, None, scheduled_plan),
    "low_confidence_static": (highest_score, probability, scheduled_plan),
    "low_confidence_dynamic": (published.dynamic, probability, None),
    "sequential": (sequential, None, scheduled_plan),
    "origin": (published.origin, None, published.origin_plan),
    "maskgit_plus": (published.dream, probability, scheduled_plan),
    "topk_margin": (published.dream, published.margin, scheduled_plan),
    "entropy": (published.dream, published.negative_entropy, scheduled_plan),
    "plackett_luce": (published.plackett_luce, None, scheduled_plan),
    "threshold": (published.threshold, None, None),
    "threshold_leftmost": (published.threshold_leftmost, None, None),
    "tau_budget": (published.tau_budget, probability, None),
    "factor": (published.factor, None, None),
    "entropy_bound": (published.entropy_bound, None, None),
}
RULES = {name: Rule(reveal, score, plan, **vars(REVEAL_RULES[name])) for name, (reveal, score, plan) in _RULES.items()}
