"""Rejection fine-tuning: the standard masked loss on rollouts that were right, the control for every RL claim."""

import math
from collections.abc import Sequence

import torch

from lfpo.config import peers as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.sequences import number_of_units


class Rejection(settings.Rejection, Objective):
    """Cross-entropy at masked positions of randomly masked right rollouts, weighted by 1/t (LLaDA, Eq. 5). Where noise
    is uniform, at all positions of noised ones, weighted alike."""

    normalizer = number_of_units
    reads_old = False
    compares = False
    reward_advice = "set objective.min_reward to what a right rollout gets at least"

    @property
    def reward_range(self) -> tuple[float, float]:
        """The default min_reward is for rewards of 0 and 1, and for bonuses beside them."""
        return (0.0, math.inf) if self.min_reward == type(self).min_reward else (-math.inf, math.inf)

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """1 for right rollouts, 0 for the others."""
        return (reward_R >= self.min_reward).to(reward_R.dtype)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        right = signal_B.nonzero().flatten().tolist()
        length = trajectory.tokens.shape[1]
        masked = torch.zeros((len(right), self.masks, length), dtype=torch.bool)
        ratio = torch.zeros((len(right), self.masks, 1))
        for i, row in enumerate(right):
            rng = generator(seeds[row], "random masks", inner)
            # One ratio from each of `masks` equal parts of (0, 1).
            ratio[i, :, 0] = (torch.arange(self.masks) + torch.rand(self.masks, generator=rng)) / self.masks
            masked[i] = torch.rand((self.masks, length), generator=rng) < ratio[i]
        device = trajectory.tokens.device
        rows = torch.tensor(right, dtype=torch.long, device=device).repeat_interleave(self.masks)
        hidden = masked.flatten(0, 1).to(device)
        # The expected share of targets: t, kept from 0 so that no weight is infinite; 1 where all tokens are targets.
        share = torch.ones_like(ratio) if trajectory.asks_about_all else ratio.clamp(min=1e-3)
        weight = 1 / (share.flatten(0, 1).to(device) * trajectory.lengths[rows][:, None])
        target = (hidden | trajectory.asks_about_all) & trajectory.until_eos[rows]
        return noised(trajectory, rows, hidden, target, weight_SC=weight.expand(hidden.shape))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """-sum over targets of log p / (t n), t the mask ratio of the view, with uniform noise 1, and n the tokens of
        its completion."""
        loss = -(predictions.weight_T * predictions.logp()).sum()
        return loss, measure_targets(predictions, predictions.at_targets(signal_B))
