"""What objectives need of rollouts, checked against the sampler before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lfpo.base.errors import UserError
from lfpo.objectives.objective import Objective
from lfpo.rollout.collect import Batch
from lfpo.rollout.kept import evenly_spaced_steps
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.tree import check_tree, node_values

# What an objective may name in `needs`, and how an error calls it. The first three are fields of Trajectory.
NEEDS = {
    "reveal_step": "the step that revealed each token",
    "confidence": "the probability of each token when it was revealed",
    "entropy": "the entropy of the prediction each token was drawn from",
    "left_to_right": "tokens revealed one at a time from left to right (sampler.block_length 1)",
    "predictions": "whole predictions at scheduled steps (a reveal rule with a schedule, and no sampler.cache)",
    "tree": "rollouts that branch (tree: [4, 4] and num_generations: 16)",
}


def given_by(sampler: SamplerConfig, tree: Sequence[int] = ()) -> frozenset[str]:
    """What rollouts of a sampler give: names of NEEDS. sampler: with its lengths filled in. tree: see LFPOConfig."""
    given = {"reveal_step", "confidence", "entropy"}
    given |= {"left_to_right"} if sampler.block_length == 1 else set()
    given |= {"predictions"} if sampler.steps and sampler.cache == "none" and not tree else set()
    return frozenset(given | ({"tree"} if tree else set()))


def check_rollouts(objective: Objective, sampler: SamplerConfig, tree: Sequence[int] = ()) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler, or these cannot branch as asked.

    The objective says so by `needs`, names of NEEDS, or by its own `check_sampler`; both are optional.
    sampler: with its lengths filled in.
    """
    if tree:
        check_tree(tree, sampler)
    for need in sorted(getattr(objective, "needs", frozenset()) - given_by(sampler, tree)):
        raise UserError(
            f"objective {type(objective).__name__} needs {NEEDS.get(need, repr(need))}, which rollouts of this sampler "
            "do not give"
        )
    if hasattr(objective, "check_sampler"):
        objective.check_sampler(sampler)


def kept_steps(objective: Objective, sampler: SamplerConfig) -> list[int]:
    """The scheduled steps whose whole predictions rollouts must keep for an objective; none unless it needs them."""
    if "predictions" not in getattr(objective, "needs", ()):
        return []
    return evenly_spaced_steps(sampler, getattr(objective, "rewarded_steps", None))


def rewards_for(
    objective: Objective, reward_B: torch.Tensor, predicted_BM: torch.Tensor | None, tree: Sequence[int]
) -> torch.Tensor:
    """What an objective's `signal` takes: rewards [B], or what it needs instead: rewards of kept predictions [B, M], or
    values of nodes [B, levels + 1]."""
    needs: frozenset[str] = getattr(objective, "needs", frozenset())
    if "predictions" in needs:
        assert predicted_BM is not None
        return predicted_BM
    return node_values(reward_B, tree) if "tree" in needs else reward_B


def signal_of(objective: Objective, batch: Batch, tree: Sequence[int] = ()) -> torch.Tensor:
    """An objective's signal from a batch of rollouts."""
    return objective.signal(rewards_for(objective, batch.reward_B, batch.predicted_reward_BM, tree), batch.group_B)
