"""What objectives need of rollouts, checked against the sampler before anything is sampled."""

from __future__ import annotations

from lfpo.base.errors import UserError
from lfpo.objectives.objective import Objective
from lfpo.rollout.sampler import SamplerConfig

# What an objective may name in `needs`, and how an error calls it. All but the last are fields of Trajectory.
NEEDS = {
    "reveal_step": "the step that revealed each token",
    "confidence": "the probability of each token when it was revealed",
    "entropy": "the entropy of the prediction each token was drawn from",
    "left_to_right": "tokens revealed one at a time from left to right (sampler.block_length 1)",
}


def given_by(sampler: SamplerConfig) -> frozenset[str]:
    """What rollouts of a sampler give: names of NEEDS. sampler: with its lengths filled in."""
    recorded = frozenset({"reveal_step", "confidence", "entropy"})
    return recorded | {"left_to_right"} if sampler.block_length == 1 else recorded


def check_rollouts(objective: Objective, sampler: SamplerConfig) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler.

    The objective says so by `needs`, names of NEEDS, or by its own `check_sampler`; both are optional.
    sampler: with its lengths filled in.
    """
    for need in sorted(getattr(objective, "needs", frozenset()) - given_by(sampler)):
        raise UserError(
            f"objective {type(objective).__name__} needs {NEEDS.get(need, repr(need))}, which rollouts of this sampler "
            "do not give"
        )
    if hasattr(objective, "check_sampler"):
        objective.check_sampler(sampler)
