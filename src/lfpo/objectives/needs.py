"""What objectives need of rollouts, checked against the sampler before anything is sampled."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from lfpo.base.errors import UserError
from lfpo.objectives.objective import Objective
from lfpo.objectives.views import Views
from lfpo.rollout.collect import Batch
from lfpo.rollout.engine import GIVES
from lfpo.rollout.kept import evenly_spaced_steps
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from lfpo.rollout.tree import check_tree, node_values

# What an objective may name in `needs` beside GIVES, and how an error calls it: states that a model which attends block
# by block cannot be shown. There a block is predicted from itself and from the blocks before it, without masks.
OF_FULL_ATTENTION = {
    "full_attention": "a model with full attention",
    "masked_prompt": "a model with full attention, because it masks prompt tokens (p_mask_prompt 0 masks none)",
}
# And what it may name for rollouts whose final tokens must be those that the sampler drew at masked positions.
UNEDITED = {"unedited": "tokens that stay as they were revealed (no sampler.editing_threshold)"}


def given_by(sampler: SamplerConfig, tree: Sequence[int] = (), trained_block: int | None = None) -> frozenset[str]:
    """What rollouts of a sampler give: names of GIVES, OF_FULL_ATTENTION and UNEDITED. sampler: with its lengths filled
    in. tree: see LFPOConfig. trained_block: the block length of a model that attends block by block."""
    given = {"reveal_step", "confidence", "entropy"}
    given |= {"left_to_right"} if sampler.block_length == 1 else set()
    given |= {"edits"} if sampler.edits else {"unedited"}
    if trained_block is None:
        given |= {"full_attention", "masked_prompt"}
        given |= {"predictions"} if sampler.steps and sampler.cache == "none" and not tree else set()
        given |= {"tree"} if tree else set()
    return frozenset(given)


def check_rollouts(
    objective: Objective,
    sampler: SamplerConfig,
    tree: Sequence[int] = (),
    gives: Collection[str] = GIVES,
    *,
    trained_block: int | None = None,
) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler, or these cannot branch as asked.

    The objective says so by `needs`, names of GIVES, OF_FULL_ATTENTION and UNEDITED, or by its own `check_sampler`;
    both are optional. One that needs reveal steps needs the edits too, if the sampler edits. gives: what the engine's
    trajectories hold. The other arguments are those of `given_by`.
    """
    if tree:
        check_tree(tree, sampler)
    needs: frozenset[str] = getattr(objective, "needs", frozenset())
    if sampler.edits and "reveal_step" in needs:
        needs |= {"edits"}
    name, called = type(objective).__name__, GIVES | OF_FULL_ATTENTION | UNEDITED
    for need in sorted(needs - given_by(sampler, tree, trained_block)):
        cause = "which rollouts of this sampler do not give"
        if trained_block is not None and need not in UNEDITED:
            cause = f"and this model attends in blocks of {trained_block} tokens"
        raise UserError(f"objective {name} needs {called.get(need, repr(need))}, {cause}")
    for need in sorted(needs - OF_FULL_ATTENTION.keys() - UNEDITED.keys() - set(gives)):
        raise UserError(
            f"objective {name} needs {called[need]}, which this engine does not give; take another engine or objective"
        )
    if hasattr(objective, "check_sampler"):
        objective.check_sampler(sampler)


def check_old_policy(objective: Objective, old_policy: str) -> None:
    """Raise UserError where `old_policy: sampler` is set for an objective whose loss does not read theta_old."""
    if old_policy == "sampler" and not getattr(objective, "reads_old", True):
        raise UserError(
            f"'old_policy' sampler is for losses that read theta_old, and that of {type(objective).__name__} does not "
            "with these settings; leave it out"
        )


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


def views_of(
    objective: Objective, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int
) -> Views:
    """An objective's views of rollouts (see Objective.views). Where the model attends block by block, the steps that it
    chooses from are rounds (see Trajectory.in_rounds), so that a forward replays a step of every block at once."""
    return objective.views(trajectory.in_rounds(), signal_B, seeds, inner)


def signal_of(objective: Objective, batch: Batch, tree: Sequence[int] = ()) -> torch.Tensor:
    """An objective's signal from a batch of rollouts."""
    return objective.signal(rewards_for(objective, batch.reward_B, batch.predicted_reward_BM, tree), batch.group_B)
