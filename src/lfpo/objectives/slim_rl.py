"""SLIM-RL (arXiv 2607.00208): PPO on random masks of levels at quadrature nodes, with one ratio a masked completion."""

import math
from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.medium_prompts import MediumPrompts
from lfpo.objectives.policy_gradient import KL_ESTIMATES, clipped_loss
from lfpo.objectives.sequences import Sequences, blocks_of, gauss_legendre, masked_views, number_of_units

LARGEST = 10.0  # bound of a ratio's logarithm, as published


class SLIMRL(settings.SLIMRL, MediumPrompts):
    """The mean over rollouts and quadrature nodes q of

        w_q [-min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A) + beta sum of KL / C],
        s = exp(mean of log p - log p_old),

    with mean and sum over the tokens that mask q hides; t_q, w_q are the Gauss-Legendre nodes and weights on (0, 1).
    C is gen_length. KL is to theta_old, not to the base.

    A token of block j = 0 .. n - 1 is hidden with probability t_q + d (1/2 - x_j), x_j = (1 - cos(pi j / (n - 1))) / 2:
    earlier blocks more, and t_q on average over the blocks. d is `spread`, or less where a probability would leave
    (0, 1). At least one scored token is hidden.

    The paper was read in its abstract only: formulas and defaults are those of the public code for SDAR-4B on MATH. Its
    rollouts use the reveal rule "tau_budget", which this loss does not require.

    The public code draws masks once for all passes, hides tokens after the first EOS as others without scoring them,
    and counts truncated answers as wrong. Here every pass draws anew, the tokens after the first EOS are always hidden,
    and the reward function decides. Blocks are those that the model attends in, or the sampler's.
    """

    needs = frozenset({"masks"})
    normalizer = number_of_units

    def probabilities(self, level: float, blocks: int) -> torch.Tensor:
        """The probability that a token of each block is hidden, float64 [blocks]."""
        if blocks == 1:
            return torch.tensor([level], dtype=torch.float64)
        spread = max(0.0, min(self.spread, 2 * min(level, 1 - level) - 1e-6))
        return level + spread / 2 * torch.cos(math.pi * torch.linspace(0, 1, blocks, dtype=torch.float64))

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """`nodes` views of each rollout that is not left out, each a unit."""
        until_eos_BC, block_BC = trajectory.until_eos.cpu(), blocks_of(trajectory).cpu()
        levels = gauss_legendre(self.nodes)[0].tolist()
        masked_QBC = torch.zeros((self.nodes, *until_eos_BC.shape), dtype=torch.bool)
        for row in signal_B.nonzero().flatten().tolist():
            rng = generator(seeds[row], "levels", inner)
            place = until_eos_BC[row].nonzero().flatten()
            block_C = block_BC[row] - block_BC[row, 0]
            for node, level in enumerate(levels):
                p = self.probabilities(level, int(block_C[-1]) + 1)[block_C[place]]
                hidden = torch.rand(len(place), generator=rng, dtype=torch.float64) < p
                if not hidden.any():
                    hidden[torch.randint(len(place), (), generator=rng)] = True
                masked_QBC[node, row, place] = hidden
        return self.mask_views(trajectory, masked_QBC.to(trajectory.tokens.device))

    def mask_views(self, trajectory: Trajectory, masked_QBC: torch.Tensor) -> Views:
        """A view for each node's mask, with the node's weight; those that hide nothing that is scored are left out."""
        weight_Q = gauss_legendre(self.nodes)[1].to(masked_QBC.device)
        weight_QB = weight_Q[:, None].expand(masked_QBC.shape[:2])
        return masked_views(trajectory, masked_QBC & trajectory.until_eos, weight_MB=weight_QB, units=self.nodes)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)
        now_T, old_T = predictions.logp(CURRENT), predictions.logp(OLD)
        change_U = sequences.sum(now_T - old_T) / sequences.targets_U
        loss_U, measures = clipped_loss(self, change_U.clamp(-LARGEST, LARGEST).exp(), signal_B[sequences.row_U])
        weight_U = sequences.weight_U.to(loss_U.dtype) / sequences.targets_U
        loss = (weight_U * loss_U).sum()
        if self.beta > 0:
            length = predictions.views.sampler.gen_length
            loss = loss + self.beta * sequences.weighted(KL_ESTIMATES[self.kl](now_T, old_T)).sum() / length
        return loss, measures | measure_targets(predictions, predictions.at_targets(signal_B))
