"""diffu-GRPO (d1, arXiv 2504.12216): GRPO on one-step likelihoods of the fully masked completion."""

from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.objective import Objective
from lfpo.core.passes import fully_masked
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.policy_gradient import token_loss


class DiffuGRPO(settings.DiffuGRPO, Objective):
    """PPO's clipped loss with log p(o_k | prompt with some tokens masked, completion wholly masked) as likelihood.

    Every pass draws new masks; d1's code repeats one mask for several passes, because its buffer index counts
    micro-steps. A rollout's mask does not depend on its row in the batch.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"masks", "masked_prompt"} if self.p_mask_prompt else {"masks"})

    loss = token_loss

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        return prompt_masked_views(trajectory, seeds, inner, self.p_mask_prompt)


def prompt_masked_views(trajectory: Trajectory, seeds: Sequence[int], inner: int, p_mask_prompt: float) -> Views:
    """One view a rollout: each prompt token masked with a probability, the whole completion masked."""
    prompt_BP = trajectory.prompt_mask.bool()
    masked_BP = torch.zeros_like(prompt_BP)
    for row, seed in enumerate(seeds):
        # Drawn for the prompt's own tokens: padding, which depends on batch mates, must not shift the draws.
        own = prompt_BP[row]
        draws = torch.rand(int(own.sum()), generator=generator(seed, "prompt mask", inner))
        masked_BP[row, own] = (draws < p_mask_prompt).to(own.device)
    return fully_masked(trajectory, masked_BP)
