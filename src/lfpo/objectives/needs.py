"""What objectives need of rollouts, checked against the sampler before anything is sampled."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from lfpo.base.errors import UserError
from lfpo.objectives.objective import Objective
from lfpo.rollout.collect import Batch
from lfpo.rollout.engine import GIVES
from lfpo.rollout.kept import evenly_spaced_steps
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.tree import check_tree, node_values


def given_by(sampler: SamplerConfig, tree: Sequence[int] = ()) -> frozenset[str]:
    """What rollouts of a sampler give: names of GIVES. sampler: with its lengths filled in. tree: see LFPOConfig."""
    given = {"reveal_step", "confidence", "entropy"}
    given |= {"left_to_right"} if sampler.block_length == 1 else set()
    given |= {"predictions"} if sampler.steps and sampler.cache == "none" and not tree else set()
    return frozenset(given | ({"tree"} if tree else set()))


def check_rollouts(
    objective: Objective, sampler: SamplerConfig, tree: Sequence[int] = (), gives: Collection[str] = GIVES
) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler, or these cannot branch as asked.

    The objective says so by `needs`, names of GIVES, or by its own `check_sampler`; both are optional.
    sampler: with its lengths filled in. gives: what the engine's trajectories hold.
    """
    if tree:
        check_tree(tree, sampler)
    needs: frozenset[str] = getattr(objective, "needs", frozenset())
    for need in sorted(needs - given_by(sampler, tree)):
        raise UserError(
            f"objective {type(objective).__name__} needs {GIVES.get(need, repr(need))}, which rollouts of this sampler "
            "do not give"
        )
    for need in sorted(needs.difference(gives)):
        raise UserError(
            f"objective {type(objective).__name__} needs {GIVES[need]}, which this engine does not give; take another "
            "engine or objective"
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
