"""Dream's scored algorithms (arXiv 2508.15487): as many positions as the schedule says, those that score best, or, with
alg_temp, drawn by their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lfpo.base.checks import not_negative
from lfpo.rollout.reveal.ranking import best
from lfpo.rollout.reveal.rule import Reveal, Rule, Step, scheduled_plan

if TYPE_CHECKING:
    import torch


def check(sampler: Any) -> None:
    not_negative(sampler, "alg_temp")


def reveal(step: Step) -> Reveal:
    """The best scores; with alg_temp, a draw from softmax(score / alg_temp) without replacement.

    Ties go to the left. With top_p they are common: all positions whose nucleus is one token score exactly 1. Dream's
    code ranks them by torch.topk, which leaves the order of ties open.
    """
    score = step.score
    if step.sampler.alg_temp:
        # The k highest of score / alg_temp + Gumbel noise are k draws without replacement.
        gumbel = -(-step.noise().clamp(min=1e-300).log()).log()
        score = score / step.sampler.alg_temp + gumbel
    at_step, count = step.next_scheduled()
    return Reveal(best(score, step.eligible, count), at_step)


def probability(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Probability of the drawn token."""
    return p_TV.gather(1, token_T[:, None]).squeeze(1)


def margin(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Probability of the most probable token minus that of the second."""
    first, second = p_TV.topk(2, dim=-1).values.unbind(-1)
    return first - second


def negative_entropy(p_TV: torch.Tensor, token_T: torch.Tensor) -> torch.Tensor:
    """Minus the entropy in nats, with the small constant of Dream's code."""
    return (p_TV * (p_TV + 1e-10).log()).sum(-1)


MASKGIT_PLUS = Rule(reveal, check, reads=("alg_temp",), schedule="dream", score=probability, plan=scheduled_plan)
TOPK_MARGIN = Rule(reveal, check, reads=("alg_temp",), schedule="dream", score=margin, plan=scheduled_plan)
ENTROPY = Rule(reveal, check, reads=("alg_temp",), schedule="dream", score=negative_entropy, plan=scheduled_plan)
