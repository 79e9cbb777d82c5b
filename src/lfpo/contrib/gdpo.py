"""GDPO (arXiv 2510.08554): PPO on whole completions, their ELBO by Gauss-Legendre quadrature over mask ratios."""

from collections.abc import Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, subset_masks
from lfpo.objectives.policy_gradient import clipped_losses
from lfpo.objectives.sequences import Sequences, gauss_legendre, masked_views, number_of_units


class GDPO(settings.GDPO, Objective):
    """The mean over rollouts of

        -min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta k3(E, E_base), rho = exp((E - E_old) / n),

    with n scored tokens and the ELBO E = sum over nodes i of w_i / t_i times the sum of log p at a random mask of
    floor(t_i n) of them; t_i, w_i are the Gauss-Legendre nodes and weights on (0, 1).

    Rounding t_i n down makes |E| too small: of 8 tokens, a node at t = 0.113 masks none. Kept as published; the error
    falls as n grows.

    In the public code old log-probabilities come from other masks than current ones, so the ratios of an unchanged
    policy spread from 0.67 to 1.41; here both use the same masks.
    """

    needs = frozenset({"masks"})
    normalizer = number_of_units

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """At most `nodes` views a rollout; they form a unit, so that a pass has whole ELBOs."""
        points, _ = gauss_legendre(self.nodes)
        masks = subset_masks(trajectory.scored(self.after_eos), seeds, inner, lambda n, _: (points * n).long())
        return self.mask_views(trajectory, masks)

    def mask_views(self, trajectory: Trajectory, masked_NBC: torch.Tensor) -> Views:
        """A view for each node, weighted as in E; those that mask nothing are left out."""
        points, weights = gauss_legendre(self.nodes)
        weight_NB = (weights / points).to(masked_NBC.device)[:, None].expand(masked_NBC.shape[:2])
        return masked_views(trajectory, masked_NBC, weight_MB=weight_NB, after_eos=self.after_eos)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)
        loss_U, measures = clipped_losses(
            self,
            lambda policy: sequences.weighted(predictions.logp(policy)),
            signal_B[sequences.row_U],
            ratio=lambda now, old: ((now - old) / sequences.length_U).exp(),
        )
        return loss_U.sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))
