"""The registry of rules, and the rules of LLaDA (arXiv 2502.09992) and SDAR, which follow a schedule."""

from collections.abc import Callable

import torch

from lfpo.config.reveal import REVEAL_RULES
from lfpo.core.pace import Plan, scheduled_plan
from lfpo.core.reveal import threshold
from lfpo.core.rule import Proposal, Reveal, Rule, Score
from lfpo.rollout.reveal import published
from lfpo.rollout.reveal.published import best


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
    "threshold": (threshold, None, None),
    "threshold_leftmost": (published.threshold_leftmost, None, None),
    "tau_budget": (published.tau_budget, probability, None),
    "factor": (published.factor, None, None),
    "entropy_bound": (published.entropy_bound, None, None),
}
# DiffusionGemma's "canvas" is no rule of what to reveal: lfpo.rollout.canvas is its sampler.
RULES = {name: Rule(reveal, score, plan, **vars(REVEAL_RULES[name])) for name, (reveal, score, plan) in _RULES.items()}
