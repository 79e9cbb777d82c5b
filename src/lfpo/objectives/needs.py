"""What objectives need of rollouts, checked against the sampler before anything is sampled."""

from collections.abc import Collection, Sequence

import torch

from lfpo.base.errors import UserError
from lfpo.objectives.objective import Objective
from lfpo.objectives.views import Views
from lfpo.rollout.engine import GIVES
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory

# What an objective may name in `needs` beside GIVES, and how an error calls it: states that a model which attends block
# by block cannot be shown. There a block is predicted from itself and from the blocks before it, without masks.
OF_FULL_ATTENTION = {
    "full_attention": "a model with full attention",
    "masked_prompt": "a model with full attention, because it masks prompt tokens (p_mask_prompt 0 masks none)",
}
# And what it may name for rollouts whose final tokens must be those that the sampler drew at masked positions.
UNEDITED = {"unedited": "tokens that stay as they were revealed (no sampler.editing_threshold)"}


def given_by(sampler: SamplerConfig, trained_block: int | None = None) -> frozenset[str]:
    """What rollouts of a sampler give: names of GIVES, OF_FULL_ATTENTION and UNEDITED. sampler: with its lengths filled
    in. trained_block: the block length of a model that attends block by block."""
    given = {"reveal_step", "confidence", "entropy"}
    given |= {"left_to_right"} if sampler.block_length == 1 else set()
    given |= {"edits"} if sampler.edits else {"unedited"}
    if trained_block is None:
        given |= {"full_attention", "masked_prompt"}
        given |= {"predictions"} if sampler.steps and sampler.cache == "none" else set()
    return frozenset(given)


def check_rollouts(
    objective: Objective,
    sampler: SamplerConfig,
    gives: Collection[str] | None = None,
    *,
    trained_block: int | None = None,
) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler.

    The objective says so by `needs` or by its own `check_sampler`. One that needs reveal steps needs the edits too, if
    the sampler edits. gives: what the engine's trajectories hold (None: not checked). The other arguments are those of
    `given_by`.
    """
    needs = objective.needs
    if sampler.edits and "reveal_step" in needs:
        needs |= {"edits"}
    name, called = type(objective).__name__, GIVES | OF_FULL_ATTENTION | UNEDITED
    for need in sorted((needs & called.keys()) - given_by(sampler, trained_block)):
        cause = "which rollouts of this sampler do not give"
        if trained_block is not None and need not in UNEDITED:
            cause = f"and this model attends in blocks of {trained_block} tokens"
        raise UserError(f"objective {name} needs {called[need]}, {cause}")
    for need in sorted(needs - OF_FULL_ATTENTION.keys() - UNEDITED.keys() - set(needs if gives is None else gives)):
        raise UserError(
            f"objective {name} needs {called.get(need, repr(need))}, which this engine does not give; take another "
            "engine or objective"
        )
    objective.check_sampler(sampler)


def check_old_policy(objective: Objective, old_policy: str) -> None:
    """Raise UserError where `old_policy: sampler` is set for an objective whose loss does not read theta_old."""
    if old_policy == "sampler" and not objective.reads_old:
        raise UserError(
            f"'old_policy' sampler is for losses that read theta_old, and that of {type(objective).__name__} does not "
            "with these settings; leave it out"
        )


def kept_steps(objective: Objective, sampler: SamplerConfig) -> list[int]:
    """The scheduled steps whose whole predictions rollouts must keep for an objective; none unless it needs them."""
    if "predictions" not in objective.needs:
        return []
    return evenly_spaced_steps(sampler, objective.rewarded_steps)


def evenly_spaced_steps(sampler: SamplerConfig, count: int | None) -> list[int]:
    """At most `count` (None: all) of a sampler's scheduled steps, the last one always among them, ascending.

    sampler: with its lengths filled in, of a reveal rule with a schedule.
    """
    assert sampler.steps
    count = min(count or sampler.steps, sampler.steps)
    return [(i + 1) * sampler.steps // count - 1 for i in range(count)]


def signal_of(
    objective: Objective, reward_R: torch.Tensor, predicted_RM: torch.Tensor | None, group_R: torch.Tensor
) -> torch.Tensor:
    """An objective's signal from the rewards of rollouts [R], or from those of their kept predictions [R, M] where it
    needs them."""
    if "predictions" in objective.needs:
        assert predicted_RM is not None
        return objective.signal(predicted_RM, group_R)
    return objective.signal(reward_R, group_R)


def views_of(
    objective: Objective, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int
) -> Views:
    """An objective's views of rollouts (see Objective.views). Where the model attends block by block, the steps that it
    chooses from are rounds (see Trajectory.in_rounds), so that a forward replays a step of every block at once."""
    return objective.views(trajectory.in_rounds(), signal_B, seeds, inner)
