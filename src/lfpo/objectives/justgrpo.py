"""JustGRPO ("The Flexibility Trap", arXiv 2601.15165): GRPO on completions sampled strictly from left to right."""

from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.objective import Objective
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import token_loss


class JustGRPO(settings.JustGRPO, Objective):
    """The mean over tokens k of -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A), rho the ratio of
    p(y_k | prompt, y_<k shown, y_k and all that follow masked) to its value under theta_old.

    It takes one view a token, the states that a sampler with `block_length: 1` visits, so each ratio is exact.

    Rollouts without an advantage are left out of the mean, as published. There is no KL.

    In the public code the ratio is that of theta to itself, so the clip never acts; the paper's is to theta_old, which
    is taken here. Both are the same in the first step on a batch. A group's deviation is the population form here.
    """

    needs = frozenset({"left_to_right", "unedited"})
    loss = token_loss

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """A view with one target for each token: S = T, the scored tokens of rollouts with an advantage."""
        scored_BC = trajectory.scored(self.after_eos) & (signal_B != 0)[:, None]
        row_S, column_S = scored_BC.nonzero().unbind(-1)
        column_C = torch.arange(scored_BC.shape[1], device=scored_BC.device)
        return noised(
            trajectory,
            row_S,
            column_C >= column_S[:, None],
            column_C == column_S[:, None],
            state_S=column_S,
            after_eos=self.after_eos,
        )
