"""What an objective is: it says which noised views of a rollout it needs, and gives a loss at their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..trajectory import Trajectory, Views


class Objective(Protocol):
    """An algorithm: a dataclass whose fields are its knobs (`objective: {name: ..., knob: ...}`)."""

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """What the loss takes instead of the reward (an advantage, or r in [0, 1]), one number a rollout [B].

        group_B: index of each rollout's prompt.
        """

    def views(self, trajectory: Trajectory, seeds: Sequence[int]) -> Views:
        """The noised inputs to predict from; seeds[b] keys the random choices for row b."""

    def token_loss(
        self, z_TV: torch.Tensor, z_ref_TV: torch.Tensor, y_T: torch.Tensor, signal_T: torch.Tensor
    ) -> torch.Tensor:
        """Loss of each target position [T], from the logits of policy and reference."""


def group_means(rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """Mean reward of each rollout's own group, [B]."""
    size = int(group_B.max()) + 1
    total = torch.zeros(size, dtype=rewards_B.dtype).index_add_(0, group_B, rewards_B)
    return (total / torch.bincount(group_B, minlength=size))[group_B]
