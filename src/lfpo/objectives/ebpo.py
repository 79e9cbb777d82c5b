"""EBPO (LLaDA2.1's report, arXiv 2602.08676, as in DARE): PPO on whole completions, with ELBOs of all their blocks."""

from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import clipped_losses, k2
from lfpo.objectives.sequences import Sequences, blocks_of, number_of_units

LARGEST = 60.0  # of a ratio's logarithm: its exponential and the gradient are finite in float32


class EBPO(settings.EBPO, Objective):
    """The mean over rollouts of

        -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta (E - E_base)^2 / 2, rho = exp(E - E_old),

    with the ELBO E, the mean over mc_samples masks of the sum over blocks b of n_b / x_b times the sum of log p at x_b
    random ones of the block's n_b scored tokens, x_b uniform on 1 .. n_b. Every mask hides tokens of every block, so a
    model that attends block by block scores all blocks in one forward, each from its own noised tokens and the clean
    blocks before it. Neither E nor the logarithm of the ratio is divided by the number of tokens.

    The report was not read: the formula is that of DARE's code, which names the report's equations 4 and 5. DARE has no
    settings for it that are public: epsilon and beta are the defaults of verl, on which DARE builds, and mc_samples is
    that of DARE's BGPO. Scored are the tokens up to the first EOS.

    A model with full attention is taken too, with the sampler's blocks, but it sees the noise of all blocks at once,
    so its E is not a sum of ELBOs given clean earlier blocks. DARE spreads x_b / n_b evenly over the blocks of a batch,
    here over all blocks and masks of a rollout, whose masks then do not depend on others. Logarithms of rho above 60
    count as 60, where DARE's loss overflows if A is negative.
    """

    needs = frozenset({"masks"})
    normalizer = number_of_units

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """mc_samples views a rollout; they form a unit, so that a pass has whole ELBOs."""
        until_eos_BC, block_BC = trajectory.until_eos.cpu(), blocks_of(trajectory).cpu()
        masked_NBC = torch.zeros((self.mc_samples, *until_eos_BC.shape), dtype=torch.bool)
        for row, seed in enumerate(seeds):
            rng = generator(seed, "block subsets", inner)
            own_C = block_BC[row].masked_fill(~until_eos_BC[row], -1)
            places = [(own_C == block).nonzero().flatten() for block in own_C.unique() if block >= 0]
            cells = self.mc_samples * len(places)
            level = (torch.rand((), generator=rng) + torch.arange(cells) / cells) % 1
            for cell, t in enumerate(level.tolist()):
                place = places[cell % len(places)]
                size = min(int(t * len(place)) + 1, len(place))
                masked_NBC[cell // len(places), row, place[torch.randperm(len(place), generator=rng)[:size]]] = True
        return self.mask_views(trajectory, masked_NBC.to(trajectory.tokens.device))

    def mask_views(self, trajectory: Trajectory, masked_NBC: torch.Tensor) -> Views:
        """A view for each mask, each target weighted by n_b / x_b of its block."""
        until_eos_BC, block_BC = trajectory.until_eos, blocks_of(trajectory)
        samples, size, _ = masked_NBC.shape
        row_S = torch.arange(size, device=block_BC.device).repeat(samples)
        target_SC, block_SC = (masked_NBC & until_eos_BC).flatten(0, 1), (block_BC - block_BC.min())[row_S]

        def in_block(where_SC: torch.Tensor) -> torch.Tensor:
            """The number of True positions in each position's block, [S, C]."""
            count = torch.zeros_like(block_SC).scatter_add(1, block_SC, where_SC.long())  # a block a column
            return count.gather(1, block_SC)

        return noised(
            trajectory,
            row_S,
            target_SC | ~until_eos_BC[row_S],
            target_SC,
            weight_SC=in_block(until_eos_BC[row_S]) / in_block(target_SC).clamp(min=1),
            unit_S=row_S,
            state_S=torch.arange(samples, device=block_BC.device).repeat_interleave(size),
        )

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)
        loss_U, measures = clipped_losses(
            self,
            lambda policy: sequences.weighted(predictions.logp(policy)) / self.mc_samples,
            signal_B[sequences.row_U],
            ratio=lambda now, old: (now - old).clamp(max=LARGEST).exp(),
            kl=k2,
        )
        return loss_U.sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))
