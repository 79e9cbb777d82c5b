"""What an objective is: it says which noised views of a rollout it needs, and gives a loss at their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views
from lfpo.rollout.trajectory import Trajectory


class Objective(Protocol):
    """An algorithm: a dataclass whose fields are its knobs (`objective: {name: ..., knob: ...}`).

    num_iterations: mu, how often each batch of rollouts is gone through, with new views each time.
    check_sampler(sampler): optional; raises UserError when rollouts of these settings cannot be learned from.
    needs_base: whether the loss asks for the policy that training started from (kept in memory only then).
    """

    @property
    def num_iterations(self) -> int: ...

    @property
    def needs_base(self) -> bool: ...

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """What the loss takes instead of the reward (an advantage, or r in [0, 1]), one number a rollout [B].

        group_B: index of each rollout's prompt. Called once for all rollouts of an iteration.
        """

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], iteration: int) -> Views:
        """The noised inputs of one optimiser step; seeds[b] keys the random choices for row b.

        iteration: 0 .. num_iterations - 1, the pass through the batch.
        """

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> torch.Tensor:
        """The loss of one pass, a sum over its targets; divided by the normaliser of the whole optimiser step.

        signal_B: of all rollouts of the step; `predictions.views.row` points into it.
        """

    def normalizer(self, views: Views) -> float:
        """What the summed loss of an optimiser step is divided by."""
