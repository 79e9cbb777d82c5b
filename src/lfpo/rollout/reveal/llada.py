"""LLaDA's remasking (arXiv 2502.09992): as many positions as the schedule says, the most confident or random ones."""

from __future__ import annotations

from lfpo.rollout.reveal.ranking import best
from lfpo.rollout.reveal.rule import Reveal, Rule, Step, scheduled_plan


def low_confidence(step: Step) -> Reveal:
    """The positions with the most confident drawn tokens."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.confidence, step.eligible, count), at_step)


def random(step: Step) -> Reveal:
    """Random positions."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.noise(), step.eligible, count), at_step)


LOW_CONFIDENCE = Rule(low_confidence, plan=scheduled_plan)
RANDOM = Rule(random, plan=scheduled_plan)
