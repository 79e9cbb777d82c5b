"""Rewards within the groups of rollouts of one prompt, and within the batch."""

import torch

from lfpo.config.errors import UserError


def group_means(reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Mean reward of each rollout's own group, [R]."""
    return group_sums(reward_R, group_R) / group_sizes(group_R)


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


def centred(reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of the rollout's own group, [R]. Raises UserError when a group has a single rollout."""
    check_groups(group_R)
    return reward_R - group_means(reward_R, group_R)


def group_sums(values_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
    """Sum over each rollout's own group, [R]."""
    size = int(group_R.max()) + 1
    return values_R.new_zeros(size).index_add_(0, group_R, values_R)[group_R]
