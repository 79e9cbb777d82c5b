"""wd1 (arXiv 2507.08838): weighted log-likelihood, without ratios, from exponentiated advantages."""

from collections.abc import Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.advantages import group_advantages
from lfpo.core.groups import group_sizes
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.diffu_grpo import prompt_masked_views
from lfpo.objectives.sequences import number_of_units


class WD1(settings.WD1, Objective):
    """Raise the one-step log-likelihood of the completion (see diffu_grpo) with weight softmax(A) and lower it with
    weight softmax(-A), both over the rollouts of a prompt; averaged over prompts.

    The public code takes the softmax over its micro-batch, which holds one prompt's rollouts.
    """

    normalizer = number_of_units
    reads_old = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"masks", "masked_prompt"} if self.p_mask_prompt else {"masks"})

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """Group size times (softmax(A) - softmax(-A)): the mean over rollouts is then the mean over prompts."""
        return self.weights(group_advantages(reward_R, group_R, self.advantage), group_R)

    def weights(self, advantage_B: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        scaled = advantage_B / self.temperature
        return group_sizes(group_R) * (_group_softmax(scaled, group_R) - _group_softmax(-scaled, group_R))

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        return prompt_masked_views(trajectory, seeds, inner, self.p_mask_prompt)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """-sum over targets of w A_w log p, A_w = G (softmax(A) - softmax(-A)) over the G rollouts of the prompt."""
        signal_T = predictions.at_targets(signal_B)
        loss = -(predictions.weight_T * signal_T * predictions.logp()).sum()
        return loss, measure_targets(predictions, signal_T)


def _group_softmax(x_B: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    size = int(group_R.max()) + 1
    peak = torch.full((size,), -torch.inf, dtype=x_B.dtype).scatter_reduce(0, group_R, x_B, "amax")
    powers = (x_B - peak[group_R]).exp()
    return powers / torch.zeros(size, dtype=x_B.dtype).index_add_(0, group_R, powers)[group_R]
