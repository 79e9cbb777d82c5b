"""What an objective is: it says which noised views of a rollout it needs, and gives a loss at their targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Self

import torch

from lfpo.config.checks import check_ranges
from lfpo.config.errors import UserError
from lfpo.config.lfpo import Advantage
from lfpo.config.sampler import SamplerConfig
from lfpo.objectives.advantages import group_advantages
from lfpo.objectives.measures import Measures
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views
from lfpo.rollout.engine import GIVES
from lfpo.rollout.trajectory import Trajectory

# What an objective may name in `needs` beside lfpo.rollout.engine.GIVES, and how an error calls it. A model that
# attends block by block predicts a block from itself and from the blocks before it, without masks.
NEEDS = {
    "full_attention": "a model with full attention",
    "masked_prompt": "a model with full attention, because it masks prompt tokens (p_mask_prompt 0 masks none)",
    "unedited": "tokens that stay as they were revealed (no sampler.editing_threshold)",
    "drawn": "tokens drawn at random (sampler.temperature above 0)",
    "unguided": "tokens drawn without guidance (sampler.cfg_scale 0)",
}


def number_of_units(objective: Objective, views: Views) -> float:
    """A normaliser: the number of the views' units, for losses that are means over rollouts, states or masks."""
    return float(len(views.unit.unique()))


class Objective:
    """An algorithm: a dataclass whose fields are its knobs (`objective: {name: ..., knob: ...}`). It has `views`,
    `loss`, and what else differs from here. One of your own need not derive from this class."""

    def __post_init__(self) -> None:
        """Raise ValueError for a knob outside of the range that its type names."""
        check_ranges(self)

    num_iterations: int = 1
    """How often each batch of rollouts is gone through (inner iterations), with new views each time."""

    whole_groups: bool = False
    """Whether the rollouts of a prompt stay in one block, in order."""

    @property
    def needs_base(self) -> bool:
        """Whether the loss uses the policy that training started from. It is kept in memory only then."""
        return False

    @property
    def reads_old(self) -> bool:
        """Whether the loss reads theta_old."""
        return True

    @property
    def needs(self) -> frozenset[str]:
        """What the objective needs of rollouts: names of lfpo.rollout.engine.GIVES, of NEEDS, or of an engine of your
        own; checked at start. With "predictions" among them, `signal` takes rewards of several states of a rollout."""
        return frozenset()

    rewarded_steps: int | None = None
    """With "predictions", at how many scheduled steps they are kept (None: all)."""

    def at_progress(self, share: float) -> Self:
        """The objective at this share of training, 0 to below 1, where its knobs follow a schedule."""
        return self

    def check_sampler(self, sampler: SamplerConfig) -> None:
        """Raise UserError when rollouts sampled this way cannot be learned from."""

    def prepare(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The views that the passes of one optimiser step take instead, where weights or targets depend on what the
        policies say or on rollouts of other ranks. Called on every rank, also with no views, without gradients, before
        the first pass. logp(views, policy): log-probabilities [T] of the targets of any views under a policy ("current"
        or "old"), each call a forward of them."""
        return views

    advantage: Advantage = "mean"
    """The form of the advantages that `signal` gives (see lfpo.objectives.advantages)."""

    neutral: ClassVar[float] = 0.0
    """The signal of a rollout from which nothing is learned, also of one that no reward function could judge."""

    @property
    def compares(self) -> bool:
        """Whether the signal compares the rollouts of a group, so that one alone has none."""
        return True

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the largest reward with which the objective learns; the first scored batch is checked. Nothing
        is learned, silently, from others: a group whose mean is not above 0 has no advantage over its mean, and so on.
        """
        return (0.0, math.inf) if self.advantage == "over_mean" else (-math.inf, math.inf)

    reward_advice: ClassVar[str] = "let the reward function return values of another range, or take another objective"
    """What to do about rewards outside of `reward_range`."""

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """What the loss takes instead of the reward, one number a rollout: an advantage, or r in [0, 1] for LFPO.

        reward_R: float64 [R], CPU, of all rollouts of an iteration on all ranks that have a reward. group_R: int64 [R],
        the index of each rollout's prompt; groups may differ in size. Returns float64 [R], CPU. Called once an
        iteration, unless no rollout has a reward (see lfpo.train.signals).

        For objectives that need "predictions", reward_R is [R, M], of each kept prediction in the order of steps. The
        signal may have a number for each state of a rollout; a view's `state` then says which it takes.
        """
        return group_advantages(reward_R, group_R, self.advantage)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """The noised inputs [S, L] that this rank's rollouts give to one optimiser step.

        trajectory: this rank's rollouts of the step. Where the model attends block by block, their steps are rounds
            (see lfpo.rollout.edits.in_rounds), so that a forward replays a step of every block at once.
        signal_B: theirs, float64 [B], on the trajectory's device.
        seeds: one a rollout, the key of its random choices. inner: the inner iteration, 0 .. num_iterations - 1.
        """
        raise NotImplementedError

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """The loss of one pass, a scalar: a sum over targets, which the caller divides by the step's normaliser. And
        what it reports: name -> [sum, count] (see lfpo.objectives.measures), `{}` for nothing.

        signal_B: as for `views`; `predictions.at_targets(signal_B)` gives each target its rollout's [T].
        """
        raise NotImplementedError

    def normalizer(self, views: Views) -> float:
        """What the summed loss of an optimiser step is divided by; summed over ranks by the caller. Unless an objective
        says otherwise, the weights of all targets."""
        return float(views.weight.sum())


def check_rollouts(
    objective: Objective,
    sampler: SamplerConfig,
    gives: Collection[str] | None = None,
    *,
    trained_block: int | None = None,
) -> None:
    """Raise UserError where an objective cannot learn from rollouts of a sampler, by its `needs` or `check_sampler`.
    One that needs reveal steps needs the edits too, if the sampler edits.

    sampler: with its lengths filled in. gives: what the engine's trajectories hold (None: not checked). trained_block:
    the block length of a model that attends block by block.
    """
    given = {"reveal_step", "confidence", "entropy", "edits" if sampler.edits else "unedited"}
    given |= {"drawn"} if sampler.temperature else set()
    given |= {"unguided"} if not sampler.cfg_scale else set()
    given |= {"left_to_right"} if sampler.block_length == 1 else set()
    if trained_block is None:
        given |= {"full_attention", "masked_prompt"}
        given |= {"predictions"} if sampler.steps and sampler.cache == "none" else set()
    needs, called, name = objective.needs, GIVES | NEEDS, type(objective).__name__
    if sampler.edits and "reveal_step" in needs:
        needs |= {"edits"}
    for need in sorted((needs & called.keys()) - given):
        cause = "which rollouts of this sampler do not give"
        if trained_block is not None and need not in ("unedited", "drawn", "unguided"):
            cause = f"and this model attends in blocks of {trained_block} tokens"
        raise UserError(f"objective {name} needs {called[need]}, {cause}")
    for need in sorted(needs - NEEDS.keys() - set(needs if gives is None else gives)):
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
    """The scheduled steps whose whole predictions rollouts must keep for an objective, ascending; none unless it needs
    them. At most `rewarded_steps`, evenly spaced, the last one always among them. sampler: with its lengths filled in.
    """
    if "predictions" not in objective.needs:
        return []
    assert sampler.steps
    count = min(objective.rewarded_steps or sampler.steps, sampler.steps)
    return [(i + 1) * sampler.steps // count - 1 for i in range(count)]
