"""LFPO: Likelihood-Free Policy Optimization (arXiv 2603.01563, section 4)."""

import math
from collections.abc import Sequence

import torch

from lfpo.config import lfpo as settings
from lfpo.config.errors import UserError
from lfpo.core.fused import rectified_sum
from lfpo.core.groups import batch_ranks, centred, group_means, group_ranges
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, masked_at_random
from lfpo.core.visited import visited_states


class LFPO(settings.LFPO, Objective):
    """Pull the denoising logits towards tokens of good rollouts and away from those of bad ones."""

    signal_range = (0.0, 1.0)
    neutral = 0.5
    reward_advice = "let the reward function return values of another range, or leave out the setting"

    @property
    def compares(self) -> bool:
        return self.reward_transform != "raw"

    @property
    def reward_range(self) -> tuple[float, float]:
        """With "raw" r is the reward itself."""
        return (0.0, 1.0) if self.reward_transform == "raw" else (-math.inf, math.inf)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"reveal_step"} if self.states == "stratified" else ())

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """r in [0, 1] for each rollout."""
        if self.reward_transform == "raw":
            for value in reward_R[(reward_R < 0) | (reward_R > 1)].tolist():
                raise UserError(
                    f"reward {value:g} is outside [0, 1], which reward_transform 'raw' needs; use 'centered'"
                )
            return reward_R
        # A = (reward - group's mean) / unit + (1 - baseline) group's level. baseline 1: as GRPO. Below it, a group
        # that is good throughout is pulled towards, too.
        centred_R = centred(reward_R, group_R)
        if self.deviation == "batch":
            above_lowest_R = group_means(reward_R, group_R) - reward_R.min()
            # 1e-4, as in TRL's GRPO: a batch of equal rewards has no deviation to divide by.
            advantage = (centred_R + (1 - self.baseline) * above_lowest_R) / (reward_R.std(correction=0) + 1e-4)
        else:
            # A group's rewards are measured by their own range, and its level by ranks: no reward of another group, be
            # it an outlier or of a task on another scale, changes the unit.
            above_lowest_R = group_means(batch_ranks(reward_R), group_R)
            advantage = centred_R / group_ranges(reward_R, group_R) + (1 - self.baseline) * above_lowest_R
        # DiffusionNFT's r = 1/2 + clip(A, -c, c) / 2c.
        return 0.5 + advantage.clamp(-self.clip, self.clip) / (2 * self.clip)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int = 0) -> Views:
        make = masked_at_random if self.states == "noised" else visited_states
        return make(trajectory, self.timesteps, seeds, inner)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """Eq. 8 to 10 in their sampled-token reading, summed over T targets: see `rectified_sum`. w is 1, or the weight
        that `target_weight` names."""
        theta, theta_old = predictions.policies[CURRENT], predictions.policies[OLD]
        r_T = predictions.at_targets(signal_B)
        # p_old: tokens that theta_old rarely draws push little, so that what most rollouts do decides.
        w_T = None if self.target_weight == "equal" else predictions.logp(OLD).exp()
        # w scales the loss only. The normaliser is the sum of views.weight, which is 1 at each of LFPO's targets.
        loss = rectified_sum(
            predictions.hidden(CURRENT),
            predictions.hidden(OLD),
            theta.head_weight,  # z = hidden @ head.T
            theta_old.head_weight,
            predictions.labels_T,
            r_T,
            w_T,
            beta=self.beta,
            positive_weight=self.positive_weight,
            negative_weight=self.negative_weight,
            precision=theta.products,
            logit_map=theta.logit_map,
        )
        return loss, measure_targets(predictions, r_T, neutral=0.5, beta=self.beta)
