"""UniGRPO (MMaDA, arXiv 2505.15809): GRPO on randomly masked completions, the mask ratio rising over the passes."""

from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.objective import Objective
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import token_loss


class UniGRPO(settings.UniGRPO, Objective):
    """PPO's clipped loss with log p(o_k | prompt, completion masked at ratio t) as likelihood of the masked tokens.
    Where noise is uniform, of all tokens.

    The prompt is never masked. Each token has its own ratio, as in the public code; the paper writes a mean of
    log-probabilities over the masked tokens.
    """

    loss = token_loss

    def step(self, first: int, inner: int) -> int:
        """t_n of pass `inner` (from 0), when the first pass has t_1 = first."""
        last = self.num_iterations - 1
        return first + inner * (self.diffusion_steps - first) // last if last else first

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        masked = torch.zeros_like(trajectory.tokens, dtype=torch.bool)
        for row, seed in enumerate(seeds):
            rng = generator(seed, "first step")  # not of `inner`: t_1 is drawn once, and the passes rise from it
            start = int(torch.randint(self.min_step, self.diffusion_steps - 1, (), generator=rng))
            draws = torch.rand(masked.shape[1], generator=generator(seed, "mask", inner))
            masked[row] = (draws < self.step(start, inner) / self.diffusion_steps).to(masked.device)
        return self.masked_views(trajectory, masked)

    def masked_views(self, trajectory: Trajectory, masked_BC: torch.Tensor) -> Views:
        """Views with the given completion tokens masked."""
        rows = torch.arange(len(trajectory), device=masked_BC.device)
        target = (masked_BC | trajectory.asks_about_all) & trajectory.scored(self.after_eos)
        return noised(trajectory, rows, masked_BC, target, after_eos=self.after_eos)
