"""MDPO (arXiv 2508.13148): PPO on whole predictions of intermediate steps, each with a reward of its own."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from lfpo.contrib import knobs as settings
from lfpo.core.advantages import group_advantages
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.roles import BASE, OLD
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import clipped_loss, k2
from lfpo.objectives.step_views import shared_by_state


class MDPO(settings.MDPO, Objective):
    """The mean over trained steps s of

        sum over rollouts and masked k of conf_k [PPO's clipped loss C / |M| + beta k2 to the base policy] / sum of |M|,

    with log p of the whole prediction that the sampler made at s, at the sampler's temperature; conf_k is the sampler's
    confidence, M the masked positions of the state before s, all C of them counted.

    Advantages: R_s is the reward of the prediction at s. u_s = R_s - R_(s-1) + 1 + mean of the later R (of the last
    step, its own R again; R_(-1) = 0), and A_s = (u_s - mean) / (deviation + 1e-4) over the prompt's rollouts.

    The public code never makes the ratios of a second pass on a batch; here they are to theta_old. Its groups are one
    rollout a rank, here a prompt's rollouts.
    """

    needs = frozenset({"masks", "reveal_step", "predictions", "drawn"})

    def signal(self, reward_RM: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """A of each step [B, M], 0 where it is not trained. reward_RM: of the predictions, in the order of steps."""
        before = torch.cat([torch.zeros_like(reward_RM[:, :1]), reward_RM[:, :-1]], dim=1)
        left = torch.arange(reward_RM.shape[1]).flip(0).clamp(min=1)
        later = reward_RM.flip(1).cumsum(1).flip(1) - reward_RM
        later[:, -1] = reward_RM[:, -1]
        worth = reward_RM - before + 1 + later / left
        columns = [group_advantages(worth_B, group_R, "zscore_sample") for worth_B in worth.unbind(1)]
        advantage = torch.stack(columns, dim=1)
        size = torch.zeros(int(group_R.max()) + 1, advantage.shape[1], dtype=advantage.dtype)
        size.index_add_(0, group_R, advantage.abs())
        best = size.topk(min(self.steps, advantage.shape[1]), dim=1).indices
        return advantage * torch.zeros_like(size).scatter_(1, best, 1.0)[group_R]

    def views(self, trajectory: Trajectory, signal_BM: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """The states before trained steps, numbered 0 .. M - 1; labels are the predictions, second weights conf."""
        t = trajectory
        assert t.predicted_at is not None and t.predicted_tokens is not None and t.predicted_confidence is not None
        made_BM = t.predicted_at <= t.reveal_step.amax(-1, keepdim=True)  # others lie after the rollout's end
        row_S, state_S = ((signal_BM != 0) & made_BM).nonzero().unbind(-1)
        masked = t.rows(row_S).masked_before(t.predicted_at[row_S, state_S])
        views = noised(t, row_S, masked, masked, state_S=state_S)
        width = t.prompt_ids.shape[1]
        labels = torch.cat([views.labels[:, :width], t.predicted_tokens[row_S, state_S]], dim=1)
        conf = F.pad(t.predicted_confidence[row_S, state_S], (width, 0)) * views.target
        return dataclasses.replace(views, labels=labels, second=conf)

    def prepare(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The masked positions of a step share a weight of 1, over all ranks. A collective; no policy runs."""
        return shared_by_state(views)

    def loss(self, predictions: Predictions, signal_BM: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        views, sampler = predictions.views, predictions.views.sampler
        masked_T, heat = views.target.sum(-1)[predictions.view_T], sampler.temperature
        advantage_T = predictions.at_targets(signal_BM)
        logp = predictions.logp(temperature=heat)
        ratio_T = (logp - predictions.logp(OLD, temperature=heat)).exp()
        loss_T, measures = clipped_loss(self, ratio_T, advantage_T)
        loss_T = loss_T * sampler.gen_length / (masked_T + 1e-4)
        if self.beta > 0:
            loss_T = loss_T + self.beta * k2(logp, predictions.logp(BASE, temperature=heat))
        loss = (predictions.weight_T * predictions.second_T * loss_T).sum()
        return loss, measures | measure_targets(predictions, advantage_T)
