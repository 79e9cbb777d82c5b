"""MDPO (arXiv 2508.13148): PPO on whole predictions of intermediate steps, each with a reward of its own."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from lfpo.config.errors import UserError
from lfpo.config.sampler import Sampler
from lfpo.contrib import knobs as settings
from lfpo.contrib.kept import KeepPredictions, KeptTrajectory, WithPredictions, kept
from lfpo.contrib.states import of_states, with_states
from lfpo.core.advantages import group_advantages
from lfpo.core.batch import RolloutSource
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import BASE, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import clipped_loss, k2
from lfpo.objectives.step_views import shared_by_state
from lfpo.rewards import Rewards


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

    needs = frozenset({"masks", "reveal_step", "full_attention", "variant", "drawn"})

    def check_sampler(self, sampler: Sampler) -> None:
        if not sampler.steps or sampler.cache != "none":
            raise UserError(
                "objective MDPO needs whole predictions at scheduled steps (a reveal rule with a schedule, and no "
                "sampler.cache), which rollouts of this sampler do not give"
            )

    def kept_steps(self, sampler: Sampler) -> tuple[int, ...]:
        """The scheduled steps whose predictions are kept, ascending: at most `rewarded_steps`, evenly spaced, the last
        one always among them. sampler: with its lengths filled in."""
        assert sampler.steps
        count = min(self.rewarded_steps or sampler.steps, sampler.steps)
        return tuple((i + 1) * sampler.steps // count - 1 for i in range(count))

    def variant(self, sampler: Sampler) -> KeepPredictions:
        return KeepPredictions(self.kept_steps(sampler))

    def rewarded(self, source: RolloutSource, tokenizer: Any, score: Callable[..., Rewards], generations: int) -> Any:
        return WithPredictions(source, tokenizer, score, self.step_advantages, generations)

    def planned(self, trajectory: Trajectory) -> KeptTrajectory:
        """Each step predicts what the rollout ends with; the rollouts are a group whose rewards differ."""
        steps = torch.tensor(self.kept_steps(trajectory.sampler)).expand(len(trajectory), -1)
        tokens = trajectory.tokens[:, None].expand(-1, steps.shape[1], -1)
        reward_B = torch.arange(len(trajectory), dtype=torch.float64)
        advantage = self.step_advantages(reward_B[:, None].expand(steps.shape), torch.zeros_like(steps[:, 0]))
        known = kept(trajectory, steps, tokens, tokens.float())
        return dataclasses.replace(known, advantage=(advantage != 0).double())

    def step_advantages(self, reward_RM: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """A of each step [R, M], 0 where it is not trained. reward_RM: of the predictions, in the order of steps."""
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

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """The states before trained steps, numbered 0 .. M - 1; labels are the predictions, second weights conf. The
        advantages are those of the predictions; `signal_B`, of the rollouts, is only reported."""
        t = trajectory
        assert isinstance(t, KeptTrajectory)
        made_BM = t.predicted_at <= t.reveal_step.amax(-1, keepdim=True)  # others lie after the rollout's end
        row_S, state_S = ((t.advantage != 0) & made_BM).nonzero().unbind(-1)
        masked = t.rows(row_S).masked_before(t.predicted_at[row_S, state_S])
        views = noised(t, row_S, masked, masked, state_S=state_S)
        width = t.prompt_ids.shape[1]
        labels = torch.cat([views.labels[:, :width], t.predicted_tokens[row_S, state_S]], dim=1)
        conf = F.pad(t.predicted_confidence[row_S, state_S], (width, 0)) * views.target
        return with_states(dataclasses.replace(views, labels=labels), t.advantage[row_S, state_S], conf)

    def before_passes(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The masked positions of a step share a weight of 1, over all ranks. A collective; no policy runs."""
        return shared_by_state(views)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        views, sampler = predictions.views, predictions.views.sampler
        masked_T, heat = views.target.sum(-1)[predictions.view_T], sampler.temperature
        advantage_T, confidence_T = of_states(predictions)
        logp = predictions.logp(temperature=heat)
        ratio_T = (logp - predictions.logp(OLD, temperature=heat)).exp()
        loss_T, measures = clipped_loss(self, ratio_T, advantage_T)
        loss_T = loss_T * sampler.gen_length / (masked_T + 1e-4)
        if self.beta > 0:
            loss_T = loss_T + self.beta * k2(logp, predictions.logp(BASE, temperature=heat))
        loss = (predictions.weight_T * confidence_T * loss_T).sum()
        return loss, measures | measure_targets(predictions, advantage_T)
