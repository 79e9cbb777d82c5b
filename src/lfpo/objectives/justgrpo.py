"""JustGRPO ("The Flexibility Trap", arXiv 2601.15165): GRPO on completions sampled strictly from left to right. In
models that attend block by block: Block JustGRPO and its Fast form (NeMo-RL, research/just_grpo)."""

import math
from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.objective import Objective
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import token_loss


class JustGRPO(settings.JustGRPO, Objective):
    """The mean over tokens k of -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta k3, rho the ratio of
    p(y_k | prompt, y_<k shown, y_k and all that follow masked) to its value under theta_old.

    These are the states that the sampler visits, so each ratio is exact. With full attention a view scores one token.
    With blocks view j shows each block before its j-th scored token, so there are as many as a block has tokens.

    Rollouts without an advantage are left out of the mean, as published. JustGRPO has no KL, the recipes of Block
    JustGRPO have beta 0.01.

    In the public code the ratio is that of theta to itself, so the clip never acts; the paper's is to theta_old, which
    is taken here. Both are the same in the first step on a batch. A group's deviation is the population form here.
    """

    loss = token_loss

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(
            {"masks", "left_to_right", "unedited"} | ({"confidence"} if self.token_fraction < 1 else set())
        )

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """Views whose targets are one scored token of each block; the scored tokens of rollouts with an advantage are
        targets once."""
        scored_BC = trajectory.scored(self.after_eos) & (signal_B != 0)[:, None]
        if self.token_fraction < 1:
            scored_BC &= least_confident(trajectory, scored_BC, self.token_fraction)
        block_BC = trajectory.block_BC
        number_BC = (counted_in_block(scored_BC, block_BC) - 1).masked_fill(~scored_BC, -1)
        # View j of a row has the j-th scored token of each block as targets, and masks these blocks from there on.
        views_B = number_BC.amax(-1) + 1
        row_S = torch.arange(len(views_B), device=views_B.device).repeat_interleave(views_B)
        state_S = torch.arange(len(row_S), device=row_S.device) - (views_B.cumsum(0) - views_B)[row_S]
        target_SC = number_BC[row_S] == state_S[:, None]
        masked_SC = counted_in_block(target_SC, block_BC[row_S]) > 0
        return noised(trajectory, row_S, masked_SC, target_SC, state_S=state_S, after_eos=self.after_eos)


def counted_in_block(true_BC: torch.Tensor, block_BC: torch.Tensor) -> torch.Tensor:
    """How many True values each block has up to and including a column, int64 [B, C]. Columns of a block follow each
    other."""
    count_BC = true_BC.long().cumsum(-1)
    return count_BC - _least_of_block(count_BC - true_BC.long(), block_BC)


def least_confident(trajectory: Trajectory, scored_BC: torch.Tensor, share: float) -> torch.Tensor:
    """The scored positions with the lowest confidence, bool [B, C]: of each block this share of its length, rounded up,
    or of each rollout this share of its scored positions where there are no blocks. Ties go to the left."""
    confidence_BC, block_BC = trajectory.confidence.masked_fill(~scored_BC, math.inf), trajectory.block_BC
    by_confidence = confidence_BC.argsort(dim=-1, stable=True)
    order = by_confidence.gather(1, block_BC.gather(1, by_confidence).argsort(dim=-1, stable=True))
    place_BC = order.argsort(-1)
    size = trajectory.structure.block_length
    count_B1 = scored_BC.sum(-1, keepdim=True) if size is None else torch.full_like(place_BC[:, :1], size)
    return place_BC - _least_of_block(place_BC, block_BC) < (share * count_B1).ceil()


def _least_of_block(value_BC: torch.Tensor, block_BC: torch.Tensor) -> torch.Tensor:
    """The least value in the block of each column, [B, C]."""
    first_BC = block_BC - block_BC[:, :1]
    none = torch.full_like(value_BC, torch.iinfo(value_BC.dtype).max)
    return none.scatter_reduce(1, first_BC, value_BC, "amin").gather(1, first_BC)
