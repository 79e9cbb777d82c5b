"""BGPO (arXiv 2510.11683, as in DARE): PPO linear in the Monte Carlo draws of the ELBO, so that each is a pass."""

from collections.abc import Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, stratified_masks
from lfpo.objectives.policy_gradient import clipped_loss
from lfpo.objectives.sequences import Sequences, elbo_views


class BGPO(settings.BGPO, Objective):
    """The mean over mc_samples masks of the mean over rollouts, weighted by their n scored tokens, of PPO's clipped
    loss with dual clip (see `settings.Clip`) of the ratio 1 + d where A > 0, exp(d) elsewhere,
    d = e - e_old, e = n / (x C) times the sum of log p at a mask of x tokens, x uniform on 1 .. n, C = gen_length.

    1 + d is a lower bound of exp(d). The loss is a sum over masks, so memory does not grow with their number.

    Defaults are DARE's, whose rollouts end at C. A group's deviation is the population form here.

    DARE computes 1 + d as exp(log(1 + d)), which is NaN for d <= -1, and multiplies micro-batches by a factor that
    counts the fields of a batch instead of its rows; neither is kept. Its KL term, off by default, is left out.
    """

    needs = frozenset({"masks"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """mc_samples views a rollout, S = mc_samples B, each a unit."""
        masked_DBC = stratified_masks(trajectory.scored(self.after_eos), seeds, inner, count=self.mc_samples, least=1)
        return elbo_views(trajectory, masked_DBC, after_eos=self.after_eos)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)
        now, old = (sequences.weighted(predictions.logp(policy)) for policy in (CURRENT, OLD))
        advantage_U = signal_B[sequences.row_U]
        change_U = now - old
        ratio_U = torch.where(advantage_U > 0, 1 + change_U, change_U.exp())
        loss_U, measures = clipped_loss(self, ratio_U, advantage_U)
        loss = (sequences.weight_U * loss_U).sum()
        return loss, measures | measure_targets(predictions, predictions.at_targets(signal_B))
