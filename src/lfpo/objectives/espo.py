"""ESPO (arXiv 2512.03759): PPO on whole completions, with the ELBO as their log-likelihood."""

from collections.abc import Sequence

import torch

from lfpo.config import clipped as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, stratified_masks
from lfpo.objectives.policy_gradient import clipped_losses, k2
from lfpo.objectives.sequences import Sequences, coupled_views, number_of_units


class ESPO(settings.ESPO, Objective):
    """The mean over rollouts of

        -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta (E - E_base)^2 / (2 n),
        rho = exp((E - E_old) / n),

    with n scored tokens and the ELBO E, the mean over mc_samples masks of x of them, x uniform on 0 .. n, of
    1/2 [(n + 1) / x sum of log p at the mask + (n + 1) / (n - x) sum of log p at its complement].

    Defaults are the public code's for GSM8K; beta is 3e-3 on Countdown, with epsilon 0, and 1e-2 on Sudoku and code.

    The public code stratifies x over the rows of a micro-batch, so a row's masks depend on its place there; here over
    the masks of a rollout. Its base policy moves up every 64 steps; here it stays where training started.
    """

    needs = frozenset({"masks"})
    normalizer = number_of_units

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """2 mc_samples views a rollout, S = 2 mc_samples B; they form a unit, so that a pass has whole ELBOs."""
        scored_BC = trajectory.scored(self.after_eos)
        return self.mask_views(trajectory, stratified_masks(scored_BC, seeds, inner, count=self.mc_samples, least=0))

    def mask_views(self, trajectory: Trajectory, masked_DBC: torch.Tensor) -> Views:
        """The two views of each of a rollout's masks, with the weights of their log-probabilities in the ELBO."""
        return coupled_views(trajectory, masked_DBC, weighted=True, together=True, after_eos=self.after_eos)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)
        loss_U, measures = clipped_losses(
            self,
            lambda policy: sequences.weighted(predictions.logp(policy)) / self.mc_samples,
            signal_B[sequences.row_U],
            ratio=lambda now, old: ((now - old) / sequences.length_U).exp(),
            kl=lambda now, base: k2(now, base) / sequences.length_U,
        )
        return loss_U.sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))
