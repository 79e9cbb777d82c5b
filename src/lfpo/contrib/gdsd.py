"""GDSD and GDSD-TLC (arXiv 2605.29398): the change of a completion's score is regressed on its advantage."""

import math
from collections.abc import Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.measures import Measures, measure_targets, sum_and_count
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, stratified_masks
from lfpo.objectives.sequences import Sequences, coupled_views, number_of_units


class GDSD(settings.GDSD, Objective):
    """The mean over rollouts of the sum over their masks of

        (clamp(S - S_old, log(1 - epsilon), log(1 + epsilon_high)) / n - psi A)^2,

    plus beta times the mean over masks of (S - S_base)^2 / (2 n), with n scored tokens and the score S, half the sum of
    log p at a mask plus half that at its complement. Masks are drawn as ESPO's.

    Defaults are the public code's for GSM8K; beta is 1e-4 on MATH.

    As in `espo`, sizes of masks are stratified within a rollout, not over a micro-batch.
    """

    needs = frozenset({"masks"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """2 mc_samples views a rollout, S = 2 mc_samples B; a mask and its complement form a unit."""
        scored_BC = trajectory.scored(self.after_eos)
        return self.mask_views(trajectory, stratified_masks(scored_BC, seeds, inner, count=self.mc_samples, least=0))

    def mask_views(self, trajectory: Trajectory, masked_DBC: torch.Tensor) -> Views:
        """The two views of each mask, one unit; the weights are those of log p in the score."""
        return coupled_views(trajectory, masked_DBC, weighted=self.tlc, together=False, after_eos=self.after_eos)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)

        def score(policy: str) -> torch.Tensor:
            return sequences.weighted(predictions.logp(policy))

        low, high = 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)
        now, n_U = score(CURRENT), sequences.length_U
        advantage_U = signal_B[sequences.row_U]
        change_U = now - score(OLD)
        loss_U = (change_U.clamp(math.log(low), math.log(high)) / n_U - self.psi * advantage_U) ** 2
        if self.beta > 0:
            loss_U = loss_U + self.beta * (now - score(BASE)) ** 2 / (2 * n_U * self.mc_samples)
        ratio_U = change_U.detach().exp()
        measures = {
            "ratio/mean": sum_and_count(ratio_U),
            "ratio/clipped": sum_and_count(((ratio_U < low) | (ratio_U > high)).double()),
        }
        return loss_U.sum(), measures | measure_targets(predictions, predictions.at_targets(signal_B))

    def normalizer(self, views: Views) -> float:
        """The number of rollouts."""
        return number_of_units(self, views) / self.mc_samples
