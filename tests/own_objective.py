"""An objective from outside the package: REINFORCE on the fully masked completion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from lfpo.objectives.advantages import group_means
from lfpo.objectives.measures import Measures, measure_targets
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, replay
from lfpo.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class Reinforce:
    """scale: factor on the advantage."""

    scale: float = 1.0
    num_iterations: ClassVar[int] = 1
    needs_base: ClassVar[bool] = False

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        return self.scale * (rewards_B - group_means(rewards_B, group_B))

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        row_B = torch.arange(len(trajectory), device=trajectory.tokens.device)
        return replay(trajectory, row_B, torch.zeros_like(row_B))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        advantage_T = predictions.at_targets(signal_B)
        return -(advantage_T * predictions.logp()).sum(), measure_targets(predictions, advantage_T)

    def normalizer(self, views: Views) -> float:
        return float(views.target.sum())
