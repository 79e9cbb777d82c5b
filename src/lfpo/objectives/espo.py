"""ESPO (arXiv 2512.03759): PPO on whole completions, with the ELBO as their log-likelihood."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.objectives import settings
from lfpo.objectives.masks import coupled_views, stratified_masks
from lfpo.objectives.measures import Measures, measure_targets
from lfpo.objectives.policy_gradient import clipped_loss
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.sequences import Sequences
from lfpo.objectives.views import Views
from lfpo.rollout.trajectory import Trajectory


class ESPO(settings.ESPO):
    """The mean over rollouts of

        -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta (E - E_base)^2 / (2 n),
        rho = exp((E - E_old) / n),

    with n scored tokens and the ELBO E, the mean over mc_samples masks of x of them, x uniform on 0 .. n, of
    1/2 [(n + 1) / x sum of log p at the mask + (n + 1) / (n - x) sum of log p at its complement].

    mc_samples: masks of each rollout and pass. after_eos: also score what was revealed after the first EOS, as
        published. epsilon, epsilon_high: clip of the ratio. beta: weight of KL to the base policy.
    Defaults are the public code's for GSM8K; beta is 3e-3 on Countdown, with epsilon 0, and 1e-2 on Sudoku and code.

    The public code stratifies x over the rows of a micro-batch, so a row's masks depend on its place there; here over
    the masks of a rollout. Its base policy moves up every 64 steps; here it stays where training started.
    """

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """2 mc_samples views a rollout, S = 2 mc_samples B; they form a unit, so that a pass has whole ELBOs."""
        scored_BC = trajectory.scored(self.after_eos)
        return self.mask_views(trajectory, stratified_masks(scored_BC, seeds, inner, count=self.mc_samples, least=0))

    def mask_views(self, trajectory: Trajectory, masked_DBC: torch.Tensor) -> Views:
        """The two views of each of a rollout's masks, with the weights of their log-probabilities in the ELBO."""
        return coupled_views(trajectory, masked_DBC, weighted=True, together=True, after_eos=self.after_eos)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)

        def elbo(policy: str) -> torch.Tensor:
            return sequences.weighted(predictions.logp(policy)) / self.mc_samples

        now, n_U = elbo(CURRENT), sequences.length_U
        advantage_U = signal_B[sequences.row_U]
        loss_U, measures = clipped_loss(self, ((now - elbo(OLD)) / n_U).exp(), advantage_U)
        if self.beta > 0:
            loss_U = loss_U + self.beta * (now - elbo(BASE)) ** 2 / (2 * n_U)
        return loss_U.sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))

    def normalizer(self, views: Views) -> float:
        """The number of rollouts."""
        return float(len(Sequences(views)))
