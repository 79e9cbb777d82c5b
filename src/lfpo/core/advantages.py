"""Group-relative advantages in the forms that the papers use."""

import torch

from lfpo.config.lfpo import Advantage
from lfpo.core.groups import centred, group_means, group_sizes, group_sums

LEAST_DEVIATION = 0.01  # of "zscore_floored"


def group_advantages(reward_R: torch.Tensor, group_R: torch.Tensor, kind: Advantage) -> torch.Tensor:
    """How much better each rollout is than the others of its prompt, [R].

    "mean": reward minus group mean (d1, SPG, AGRPO). "over_mean": that over the group mean (MaxRL, see `over_mean`).
    "zscore": "mean" over the group's standard deviation, population form (GRPO, TraceRL). "zscore_sample": the same in
    the sample form (MDPO). "zscore_floored": "mean" over the deviation or LEAST_DEVIATION, whichever is larger (RLDF).
    "leave_one_out": reward minus the mean of the others (coupled-GRPO, ESPO), which is "mean" times G / (G - 1).
    Raises UserError when a group has a single rollout: there is nothing to compare.
    """
    sizes, above_mean = group_sizes(group_R), centred(reward_R, group_R)
    if kind == "leave_one_out":
        return above_mean * sizes / (sizes - 1)
    if kind == "mean":
        return above_mean
    if kind == "over_mean":
        return over_mean(above_mean, reward_R, group_R)
    deviation = (group_sums(above_mean**2, group_R) / (sizes - int(kind == "zscore_sample"))).sqrt()
    return above_mean / (deviation.clamp(min=LEAST_DEVIATION) if kind == "zscore_floored" else deviation + 1e-4)


def over_mean(advantage_R: torch.Tensor, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Advantages in units of their group's mean reward, [R] (MaxRL, arXiv 2602.02710).

    With rewards of 0 and 1 a group of which a share p is right gives 1 / p - 1 to right rollouts and -1 to wrong ones.
    0 where the mean is not above 0: the paper's rewards are never negative, and it leaves out groups without a right
    rollout.
    """
    mean_R = group_means(reward_R, group_R)
    return (advantage_R / mean_R).masked_fill(mean_R <= 0, 0.0)
