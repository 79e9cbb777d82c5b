"""Group-relative advantages in the forms that the papers use."""

import torch

from lfpo.config.errors import UserError
from lfpo.config.lfpo import Advantage

LEAST_DEVIATION = 0.01  # of "zscore_floored"


def group_means(reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Mean reward of each rollout's own group, [R]."""
    return _per_group_sum(reward_R, group_R) / group_sizes(group_R)


def group_sizes(group_R: torch.Tensor) -> torch.Tensor:
    """Number of rollouts in each rollout's own group, [R]."""
    return group_R.bincount()[group_R]


def group_ranges(reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Largest minus smallest reward of each rollout's own group, [R]; infinite where the group agrees.

    A difference of float64 rounding counts as agreement: rewards of one value, summed in another order, differ by it.
    """
    count = int(group_R.max()) + 1
    lowest_G = reward_R.new_zeros(count).scatter_reduce(0, group_R, reward_R, "amin", include_self=False)
    highest_G = reward_R.new_zeros(count).scatter_reduce(0, group_R, reward_R, "amax", include_self=False)
    range_G = highest_G - lowest_G
    rounding_G = 1e-12 * lowest_G.abs().maximum(highest_G.abs())
    return range_G.masked_fill(range_G <= rounding_G, float("inf"))[group_R]


def batch_ranks(reward_R: torch.Tensor) -> torch.Tensor:
    """The rank of each reward in the batch, from 0 (none is lower) to 1 (none is higher), [R]; 0 where all are equal.

    rank = below / (below + above), with the numbers of rollouts whose reward is lower and higher. Equal rewards count
    for neither side, so rewards of 0 and 1 are their own ranks, however many there are of each.
    """
    below_R = (reward_R < reward_R[:, None]).sum(-1)
    above_R = (reward_R > reward_R[:, None]).sum(-1)
    return below_R / (below_R + above_R).clamp(min=1).to(reward_R.dtype)


def check_groups(group_R: torch.Tensor) -> None:
    """Raise UserError when a group has a single rollout."""
    if int(group_sizes(group_R).min()) == 1:
        raise UserError("advantages compare the rollouts of a prompt; num_generations must exceed 1")


def group_advantages(reward_R: torch.Tensor, group_R: torch.Tensor, kind: Advantage) -> torch.Tensor:
    """How much better each rollout is than the others of its prompt, [R].

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


def _per_group_sum(values_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    size = int(group_R.max()) + 1
    return values_R.new_zeros(size).index_add_(0, group_R, values_R)[group_R]
