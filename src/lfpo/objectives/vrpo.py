"""VRPO (LLaDA 1.5, arXiv 2505.19223; the code is DARE's): DPO with the ELBO as a completion's log-likelihood."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from lfpo.config import peers as settings
from lfpo.core.measures import Measures, measure_targets, sum_and_count
from lfpo.core.model import BASE
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, stratified_masks
from lfpo.objectives.sequences import elbo_views, number_of_units


class VRPO(settings.VRPO, Objective):
    """The mean over pairs of -log sigmoid(beta [(e - e_base) of the chosen - (e - e_base) of the rejected completion]),
    with e the mean over mc_samples masks of n / (x C) times the sum of log p at a mask of x of its n scored tokens, x
    uniform on 1 .. n, C = gen_length. Policy and base policy share the masks. `lfpo dpo` trains it: rows 2p and 2p + 1
    are the chosen and the rejected completion of pair p.
    """

    needs = frozenset({"masks"})
    normalizer = number_of_units
    needs_base = True

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """1 for each chosen and -1 for each rejected completion."""
        return (1.0 - 2.0 * (torch.arange(len(reward_R)) % 2)).to(reward_R)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        scored_BC = trajectory.scored(self.after_eos)
        return self.mask_views(trajectory, stratified_masks(scored_BC, seeds, inner, count=self.mc_samples, least=1))

    def mask_views(self, trajectory: Trajectory, masked_DBC: torch.Tensor) -> Views:
        """Views with given masks; those of a pair form a unit."""
        views = elbo_views(trajectory, masked_DBC, after_eos=self.after_eos)
        return dataclasses.replace(views, unit=views.row // 2, weight=views.weight / len(masked_DBC))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        views = predictions.views
        reward_B = self.beta * elbos(views, predictions.logp() - predictions.logp(BASE))
        pair_P = views.unit.unique()
        # The implicit reward of DPO, beta log(p / p_base), with ELBOs for log-likelihoods.
        chosen_P, rejected_P = reward_B[2 * pair_P], reward_B[2 * pair_P + 1]
        margin_P = chosen_P - rejected_P
        measures = {
            "rewards/chosen": sum_and_count(chosen_P),
            "rewards/rejected": sum_and_count(rejected_P),
            "rewards/margins": sum_and_count(margin_P),
            "rewards/accuracies": sum_and_count((margin_P > 0).double()),
        }
        # `lfpo dpo` has no rewards and passes a signal of zeros; the measures need to know which rows were chosen.
        signs_B = self.signal(signal_B, signal_B)
        return -F.logsigmoid(margin_P).sum(), measures | measure_targets(predictions, predictions.at_targets(signs_B))


def elbos(views: Views, logp_T: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each row's targets, [rows up to the last that has views]; of all its masks e (see VRPO)."""
    row_T = views.row[views.target.nonzero()[:, 0]]
    weight_T = views.weight[views.target].to(logp_T.dtype)
    return logp_T.new_zeros(int(views.row.max()) + 1).index_add(0, row_T, weight_T * logp_T)
