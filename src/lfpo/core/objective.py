"""What an objective is: it says which noised views of a rollout it needs, and gives a loss at their targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch

from lfpo.config.checks import check_ranges
from lfpo.config.errors import CannotGoOn, UserError
from lfpo.config.lfpo import Advantage
from lfpo.config.sampler import Sampler
from lfpo.core.advantages import group_advantages
from lfpo.core.batch import RolloutSource
from lfpo.core.engine import Variant
from lfpo.core.measures import Measures
from lfpo.core.predictions import Predictions
from lfpo.core.scoring import Rewards
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views

LARGEST = torch.finfo(torch.float32).max  # losses are computed in float32


class Objective:
    """An algorithm: a dataclass whose fields are its knobs (`objective: {name: ..., knob: ...}`). It has `views`,
    `loss`, and what else differs from here. One of your own need not derive from this class."""

    def __post_init__(self) -> None:
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
        """Required properties of rollouts: names of lfpo.core.trajectory.GIVES and lfpo.objectives.needs.NEEDS, or of
        an engine of your own; checked at start."""
        return frozenset()

    def at_progress(self, share: float) -> Self:
        """The objective at this share of training, 0 to below 1, where its knobs follow a schedule."""
        return self

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise UserError when rollouts sampled this way cannot be learned from."""

    advantage: Advantage = "mean"
    """The form of the advantages that `signal` gives (see lfpo.core.advantages)."""

    signal_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The least and the largest signal."""

    neutral: ClassVar[float] = 0.0
    """The signal of a rollout that is pulled nowhere, also of one that no reward function could judge. With LFPO (1/2)
    it holds theta at theta_old."""

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
        iteration, unless no rollout has a reward (see signal_of).
        """
        return group_advantages(reward_R, group_R, self.advantage)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """The noised inputs [S, L] that this rank's rollouts give to one optimiser step.

        trajectory: this rank's rollouts of the step. Where the model attends block by block, their steps are rounds
            (see Trajectory.in_rounds), so that a forward replays a step of every block at once.
        signal_B: theirs, float64 [B], on the trajectory's device.
        seeds: one a rollout, the key of its random choices. inner: the inner iteration, 0 .. num_iterations - 1.
        """
        raise NotImplementedError

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """The loss of one pass, a scalar: a sum over targets, which the caller divides by the step's normaliser. And
        what it reports: name -> [sum, count] (see lfpo.core.measures), `{}` for nothing.

        signal_B: as for `views`; `predictions.at_targets(signal_B)` gives each target its rollout's [T].
        """
        raise NotImplementedError

    def normalizer(self, views: Views) -> float:
        """What the summed loss of an optimiser step is divided by; summed over ranks by the caller. Unless an objective
        says otherwise, the weights of all targets."""
        return float(views.weight.sum())

    # Points where an objective hangs in that needs more than the rewards and the states of plain rollouts.

    def variant(self, sampler: Sampler) -> Variant | None:
        """Another way to sample its rollouts (see lfpo.core.engine.Request). sampler: with its lengths filled in."""
        return None

    def rewarded(
        self, source: RolloutSource, tokenizer: Any, score: Callable[..., Rewards], generations: int
    ) -> RolloutSource:
        """The source of rollouts, with further rewards. score: as Scorer.score. generations: rollouts of a prompt."""
        return source

    def planned(self, trajectory: Trajectory) -> Trajectory:
        """A trajectory that no sampler made, with what `variant` and `rewarded` add to rollouts; of `lfpo plan`."""
        return trajectory

    def before_passes(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The views that the passes of one optimiser step take instead, where weights or targets depend on what the
        policies say or on rollouts of other ranks. Called on every rank, also with no views, without gradients, before
        the first pass. logp(views, policy): log-probabilities [T] of the targets of any views under a policy ("current"
        or "old"), each call a forward of them."""
        return views


def signal_of(objective: Objective, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """`objective.signal` of the scored rollouts, and its neutral value for the others; float64 [R].

    reward_R: float64 [R], NaN where a rollout has no reward. group_R: as for `signal`.
    The objective sees the scored rollouts alone, their groups numbered anew without gaps, so no objective has to know
    of NaN. A rollout that is alone in its group has nothing to be compared with: it is neutral too, unless the
    objective does not compare. One that needs whole groups sees only groups in which every rollout has a reward.
    The same on all ranks. Raises CannotGoOn for a signal that float32 cannot hold.
    """
    scored = ~reward_R.isnan()
    # bincount counts by group: of a group's rollouts those without a reward, or those with one.
    if objective.whole_groups:
        missing = group_R[~scored].bincount(minlength=int(group_R.max()) + 1) > 0
        scored = ~missing[group_R]
    if objective.compares and not scored.all():
        alone = group_R[scored].bincount(minlength=int(group_R.max()) + 1) == 1
        scored &= ~alone[group_R]
    if not scored.any():
        return torch.full_like(reward_R, objective.neutral)
    groups = group_R[scored].unique(return_inverse=True)[1]
    try:
        some = objective.signal(reward_R[scored], groups)
    except UserError as error:
        raise CannotGoOn(str(error)) from error  # all ranks have the same rewards
    wrong = ~(some.abs() <= LARGEST)
    if wrong.any():
        reward = float(reward_R[scored][wrong][0])
        raise CannotGoOn(
            f"objective {type(objective).__name__}: the signal of a rollout with reward {reward:g} is beyond the range "
            f"of float32; {objective.reward_advice}"
        )
    signal = torch.full_like(reward_R, objective.neutral)
    signal[scored] = some
    return signal


def sum_of_signals(
    objective: Objective, parts_RK: torch.Tensor, weights: Sequence[float], group_R: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of the signals that each of K reward functions alone would give, float64 [R].

    This is GDPO of arXiv 2601.05242, without its normalisation over the batch: neither a function's scale nor its
    spread within a group decides how much the others count. parts_RK: float64 [R, K], NaN where a function gave no
    reward. Not to be confused with the objective `gdpo`.
    """
    signals = [signal_of(objective, part_R, group_R) - objective.neutral for part_R in parts_RK.T]
    total = sum((w * signal_R for w, signal_R in zip(weights, signals, strict=True)), torch.zeros_like(parts_RK[:, 0]))
    return (objective.neutral + total).clamp(*objective.signal_range)


def check_range(objective: Objective, reward_R: torch.Tensor) -> None:
    """Raise CannotGoOn where a reward lies outside of what the objective says it needs. NaN is no reward."""
    lowest, highest = objective.reward_range
    for value in reward_R[(reward_R < lowest) | (reward_R > highest)].tolist()[:1]:
        need = f"from {lowest:g} to {highest:g}" if highest < float("inf") else f"of at least {lowest:g}"
        if (lowest, highest) == (0.0, float("inf")):
            need = "that are not negative"
        raise CannotGoOn(
            f"objective {type(objective).__name__} needs rewards {need}, and a rollout of the first scored batch has "
            f"{value:g}; {objective.reward_advice}"
        )
