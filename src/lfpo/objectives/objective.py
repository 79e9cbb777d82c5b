"""What an objective is: it says which noised views of a rollout it needs, and gives a loss at their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from lfpo.objectives.measures import Measures
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory


class Objective(Protocol):
    """An algorithm: a dataclass whose fields are its knobs (`objective: {name: ..., knob: ...}`). What it does not say
    itself, and what each of these mean, is in lfpo.objectives.settings.Defaults."""

    @property
    def num_iterations(self) -> int: ...

    @property
    def needs_base(self) -> bool: ...

    @property
    def reads_old(self) -> bool: ...

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def rewarded_steps(self) -> int | None: ...

    @property
    def whole_groups(self) -> bool: ...

    def at_progress(self, share: float) -> Any: ...

    def check_sampler(self, sampler: SamplerConfig) -> None: ...

    def prepare(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views: ...

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """What the loss takes instead of the reward, one number a rollout: an advantage, or r in [0, 1] for LFPO.

        reward_R: float64 [R], CPU, of all rollouts of an iteration on all ranks. group_R: int64 [R], the index of each
        rollout's prompt. Returns float64 [R], CPU. Called once an iteration.

        For objectives that need "predictions", reward_R is [R, M], of each kept prediction in the order of steps. The
        signal may have a number for each state of a rollout; a view's `state` then says which it takes.
        """

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """The noised inputs [S, L] that this rank's rollouts give to one optimiser step.

        trajectory: this rank's rollouts of the step; signal_B: theirs, float64 [B], on the trajectory's device.
        seeds: one a rollout, the key of its random choices. inner: the inner iteration, 0 .. num_iterations - 1.
        """

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """The loss of one pass, a scalar: a sum over targets, which the caller divides by the step's normaliser. And
        what it reports: name -> [sum, count] (see lfpo.objectives.measures), `{}` for nothing.

        signal_B: as for `views`; `predictions.at_targets(signal_B)` gives each target its rollout's [T].
        """

    def normalizer(self, views: Views) -> float:
        """What the summed loss of an optimiser step is divided by; summed over ranks by the caller."""
