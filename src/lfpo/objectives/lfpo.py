"""LFPO: Likelihood-Free Policy Optimization (arXiv 2603.01563, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..errors import UserError
from ..ops.rectified import printed_loss, rectified_loss
from ..rng import generator
from ..trajectory import Trajectory, Views, replay, stratified_indices
from .objective import group_means


@dataclass(frozen=True)
class LFPO:
    """Pull the denoising logits towards tokens of good rollouts and away from those of bad ones.

    beta: how far the implicit policies pi+- stand from the reference; the loss is divided by it, so it does not scale
        the first gradient. Smaller learns faster and drifts further (the optimum is KL-regularised RL at beta / 2).
    timesteps: K, replayed states per rollout, one from each of K equal segments of its steps (Eq. 11).
    reward_transform: "centered" turns the group-relative advantage into r = 1/2 + clip(A, -c, c) / (2 c), as in
        DiffusionNFT; "raw" takes r to be the reward itself, as printed, which must then lie in [0, 1].
    clip: c above, in standard deviations of the batch's rewards.
    positive_weight, negative_weight: weights on the two branches; (1, 0) and (0, 1) are the paper's ablations.
    reading: "rectified" is the loss with the sampled token (see ops.rectified.rectified_loss). "printed" and
        "printed_through" are Eq. 10 to the letter, with the targets fixed or not; neither can learn from rewards
        (see ops.rectified.printed_loss), and they are here so that anyone can see it.
    """

    beta: float = 0.3
    timesteps: int = 4
    reward_transform: Literal["centered", "raw"] = "centered"
    clip: float = 1.0
    positive_weight: float = 1.0
    negative_weight: float = 1.0
    reading: Literal["rectified", "printed", "printed_through"] = "rectified"

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta {self.beta} must be positive")
        if self.timesteps < 1:
            raise ValueError(f"timesteps {self.timesteps} must be at least 1")
        if self.clip <= 0:
            raise ValueError(f"clip {self.clip} must be positive")
        if min(self.positive_weight, self.negative_weight) < 0 or self.positive_weight + self.negative_weight == 0:
            raise ValueError("positive_weight and negative_weight must not be negative, nor both zero")

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """r in [0, 1] for each rollout."""
        if self.reward_transform == "raw":
            outside = (rewards_B < 0) | (rewards_B > 1)
            if outside.any():
                value = float(rewards_B[outside][0])
                raise UserError(
                    f"reward {value:g} is outside [0, 1], which reward_transform 'raw' needs; use 'centered'"
                )
            return rewards_B
        if len(rewards_B) == int(group_B.max()) + 1:
            raise UserError(
                "reward_transform 'centered' compares the rollouts of a prompt; num_generations must exceed 1"
            )
        centred = rewards_B - group_means(rewards_B, group_B)
        advantage = centred / (rewards_B.std(correction=0) + 1e-4)
        return 0.5 + advantage.clamp(-self.clip, self.clip) / (2 * self.clip)

    def views(self, trajectory: Trajectory, seeds: Sequence[int]) -> Views:
        """States the sampler really visited, at K stratified timesteps of each row."""
        rows, steps = [], []
        for row, seed in enumerate(seeds):
            distinct = trajectory.distinct_steps(row)
            index = stratified_indices(len(distinct), self.timesteps, generator(seed, "timesteps"))
            rows += [row] * len(index)
            steps.append(distinct[index.to(distinct.device)])
        return replay(trajectory, torch.tensor(rows, device=trajectory.tokens.device), torch.cat(steps))

    def token_loss(
        self, z_TV: torch.Tensor, z_ref_TV: torch.Tensor, y_T: torch.Tensor, signal_T: torch.Tensor
    ) -> torch.Tensor:
        weights = {"positive_weight": self.positive_weight, "negative_weight": self.negative_weight}
        if self.reading == "rectified":
            return rectified_loss(z_TV, z_ref_TV, y_T, signal_T, beta=self.beta, **weights)
        through = self.reading == "printed_through"
        return printed_loss(z_TV, z_ref_TV, signal_T, beta=self.beta, through=through, **weights)
