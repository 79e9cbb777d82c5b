"""Group-relative advantages in the forms that the papers use."""

import torch

from lfpo.config.errors import UserError
from lfpo.config.lfpo import Advantage

LEAST_DEVIATION = 0.01  # of "zscore_floored"


def group_means(reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Mean reward of each rollout's own group, [B]."""
    return _per_group_sum(reward_R, group_R) / group_sizes(group_R)


def group_sizes(group_R: torch.Tensor) -> torch.Tensor:
    """Number of rollouts in each rollout's own group, [B]."""
    return group_R.bincount()[group_R]


def check_groups(group_R: torch.Tensor) -> None:
    """Raise UserError when a group has a single rollout."""
    if int(group_sizes(group_R).min()) == 1:
        raise UserError("advantages compare the rollouts of a prompt; num_generations must exceed 1")


def group_advantages(reward_R: torch.Tensor, group_R: torch.Tensor, kind: Advantage) -> torch.Tensor:
    """How much better each rollout is than the others of its prompt, [B].

    "mean": reward minus group mean (d1, SPG, AGRPO). "over_mean": that over the group mean (MaxRL, see `over_mean`).
    "zscore": "mean" over the group's standard deviation, population form (GRPO, TraceRL). "zscore_sample": the same in
    the sample form (MDPO). "zscore_floored": "mean" over the deviation or LEAST_DEVIATION, whichever is larger (RLDF).
    "leave_one_out": reward minus the mean of the others (coupled-GRPO, ESPO), which is "mean" times G / (G - 1).
    Raises UserError when a group has a single rollout: there is nothing to compare.
    """
    check_groups(group_R)
    sizes = group_sizes(group_R)
    centred = reward_R - group_means(reward_R, group_R)
    if kind == "leave_one_out":
        return centred * sizes / (sizes - 1)
    if kind == "mean":
        return centred
    if kind == "over_mean":
        return over_mean(centred, reward_R, group_R)
    deviation = (_per_group_sum(centred**2, group_R) / (sizes - int(kind == "zscore_sample"))).sqrt()
    return centred / (deviation.clamp(min=LEAST_DEVIATION) if kind == "zscore_floored" else deviation + 1e-4)


def over_mean(advantage_R: torch.Tensor, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Advantages in units of their group's mean reward, [R] (MaxRL, arXiv 2602.02710).

    With rewards of 0 and 1 a group of which a share p is right gives 1 / p - 1 to right rollouts and -1 to wrong ones.
    0 where the mean is not above 0: the paper's rewards are never negative, and it leaves out groups without a right
    rollout.
    """
    mean_R = group_means(reward_R, group_R)
    return (advantage_R / mean_R).masked_fill(mean_R <= 0, 0.0)


def medium_prompts(
    advantage_R: torch.Tensor, reward_R: torch.Tensor, group_R: torch.Tensor, least: float, most: float
) -> torch.Tensor:
    """The advantages, exactly 0 only for rollouts of prompts whose mean reward is outside of least .. most: a rollout
    at its group's mean keeps its KL term."""
    mean_R = group_means(reward_R, group_R)
    slack = 1e-9  # 1/5 of five rewards is not 0.2 in floating point
    outside_R = (mean_R < least - slack) | (mean_R > most + slack)
    return advantage_R.masked_fill(advantage_R == 0, 1e-12).masked_fill(outside_R, 0.0)


def _per_group_sum(values_B: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    size = int(group_R.max()) + 1
    return values_B.new_zeros(size).index_add_(0, group_R, values_B)[group_R]
