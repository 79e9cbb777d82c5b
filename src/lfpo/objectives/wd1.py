"""wd1 (arXiv 2507.08838): weighted log-likelihood, without ratios, from exponentiated advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from lfpo.base.checks import at_least_one, in_unit_interval, positive
from lfpo.objectives.advantages import Advantage, group_advantages, group_sizes
from lfpo.objectives.diffu_grpo import prompt_masked_views
from lfpo.objectives.measures import Measures, measure_targets
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views
from lfpo.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class WD1:
    """Raise the one-step log-likelihood of the completion (see diffu_grpo) with weight softmax(A) and lower it with
    weight softmax(-A), both over the rollouts of a prompt; averaged over prompts.

    temperature: divides the advantages before the softmax. p_mask_prompt: chance of masking each prompt token.
    num_iterations: passes through each batch, with new masks. The public code takes the softmax over its micro-batch,
    which holds one prompt's rollouts.
    """

    num_iterations: int = 8
    p_mask_prompt: float = 0.15
    temperature: float = 1.0
    advantage: Advantage = "mean"
    needs_base: ClassVar[bool] = False
    reads_old: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least_one(self, "num_iterations")
        in_unit_interval(self, "p_mask_prompt")
        positive(self, "temperature")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"masked_prompt"} if self.p_mask_prompt else ())

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """Group size times (softmax(A) - softmax(-A)): the mean over rollouts is then the mean over prompts."""
        return self.weights(group_advantages(rewards_B, group_B, self.advantage), group_B)

    def weights(self, advantage_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        scaled = advantage_B / self.temperature
        return group_sizes(group_B) * (_group_softmax(scaled, group_B) - _group_softmax(-scaled, group_B))

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        return prompt_masked_views(trajectory, seeds, inner, self.p_mask_prompt)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """-sum over targets of w A_w log p, A_w = G (softmax(A) - softmax(-A)) over the G rollouts of the prompt."""
        signal_T = predictions.at_targets(signal_B)
        loss = -(predictions.weight_T * signal_T * predictions.logp()).sum()
        return loss, measure_targets(predictions, signal_T)

    def normalizer(self, views: Views) -> float:
        """The number of rollouts."""
        return float(len(views))


def _group_softmax(x_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    size = int(group_B.max()) + 1
    peak = torch.full((size,), -torch.inf, dtype=x_B.dtype).scatter_reduce(0, group_B, x_B, "amax")
    powers = (x_B - peak[group_B]).exp()
    return powers / torch.zeros(size, dtype=x_B.dtype).index_add_(0, group_B, powers)[group_B]
