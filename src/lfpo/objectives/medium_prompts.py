"""What TraceRL and SLIM-RL share: prompts that are too easy or too hard are left out."""

import torch

from lfpo.config import clipped as settings
from lfpo.core.advantages import group_advantages
from lfpo.core.groups import group_means
from lfpo.core.objective import Objective


class MediumPrompts(settings.OfMediumPrompts, Objective):
    """Learns from prompts whose mean reward is between min_accuracy and max_accuracy."""

    reward_range = (0.0, 1.0)  # the mean reward of a prompt is its accuracy
    reward_advice = "let the reward function return values from 0 to 1, as 0 for wrong and 1 for right answers"

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """The advantages, exactly 0 only for rollouts of prompts that are left out: a rollout at its group's mean keeps
        its KL term."""
        advantage_R = group_advantages(reward_R, group_R, self.advantage)
        mean_R = group_means(reward_R, group_R)
        slack = 1e-9  # 1/5 of five rewards is not 0.2 in floating point
        outside_R = (mean_R < self.min_accuracy - slack) | (mean_R > self.max_accuracy + slack)
        return advantage_R.masked_fill(advantage_R == 0, 1e-12).masked_fill(outside_R, 0.0)
