"""RLDF ("Drift", arXiv 2605.25638): replayed states, mostly uncertain ones, scored where the model is sure."""

import dataclasses
from collections.abc import Callable, Sequence

import torch

from lfpo.contrib import knobs as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised
from lfpo.objectives.policy_gradient import KL_ESTIMATES, clipped_loss
from lfpo.objectives.step_views import shared_by_state, step_means


class RLDF(settings.RLDF, Objective):
    """Token losses -A log p (one pass through a batch) or PPO's (several), plus beta times KL to the base policy, at
    the kept positions of `states` replayed states of each rollout.

    A state's masked tokens up to the first EOS are kept if the state's step revealed them or their probability is at
    least `threshold`: under theta with one pass, under theta_old with several. That takes a forward without gradients
    before the update. Where the sampler edits, so are tokens that the step or a later one edits; the label is what the
    step wrote, else the final token.

    Not kept of the public code: its valid tokens exclude EOS, which is never trained then, and tokens after it count as
    revealed at step 0, so states show an end that the sampler had not placed. Left out: its entropy term (off by
    default) and its selection of groups.
    """

    needs = frozenset({"masks", "reveal_step", "confidence"})

    @property
    def reads_old(self) -> bool:
        return self.num_iterations > 1

    def step_scores(self, trajectory: Trajectory) -> list[torch.Tensor]:
        """For each row, the mean of -log p of what each of its distinct steps revealed, on the CPU."""
        return step_means(trajectory, -trajectory.with_edits("confidence").double().clamp(min=1e-12).log())

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """`states` views a rollout, S = K B."""
        drawn = []
        for steps, score, seed in zip(trajectory.distinct_steps(), self.step_scores(trajectory), seeds, strict=True):
            rng = generator(seed, "states", inner)
            index = weighted_indices(score, self.states, rng, self.temperature)
            again = torch.randint(len(steps), (self.states - len(index),), generator=rng)
            drawn.append(steps[torch.cat([index, again])])
        return self.state_views(trajectory, torch.stack(drawn).to(trajectory.tokens.device))

    def state_views(self, trajectory: Trajectory, step_BK: torch.Tensor) -> Views:
        """The states before given steps. Until `before_passes` weight 1 marks what the step writes, 1/2 the rest."""
        row_S = torch.arange(len(step_BK), device=step_BK.device).repeat_interleave(self.states)
        rows, step_S = trajectory.rows(row_S), step_BK.flatten()
        own, after = rows.written_by(step_S, step_S), rows.written_until(step_S)
        labels = None if after is None else torch.where(own, after, rows.tokens)
        target, weight = rows.pending_before(step_S) & rows.until_eos, torch.where(own, 1.0, 0.5)
        k_S = torch.arange(self.states, device=step_BK.device).repeat(len(step_BK))
        masked, shown = rows.masked_before(step_S), rows.tokens_before(step_S)
        return noised(trajectory, row_S, masked, target, shown_SC=shown, label_SC=labels, weight_SC=weight, state_S=k_S)

    def before_passes(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """Only the kept targets, weighted for the mean that `aggregation` names. A collective."""
        sure_T = logp(views, OLD if self.reads_old else CURRENT).exp() >= self.threshold
        target = views.target.clone()
        target[views.target] = sure_T | (views.weight[views.target] == 1)
        views = dataclasses.replace(views, target=target)
        if self.aggregation == "token":
            return shared_by_state(views)
        return dataclasses.replace(views, weight=target / target.sum(-1, keepdim=True).clamp(min=1))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        logp, advantage_T = predictions.logp(), predictions.at_targets(signal_B)
        loss_T, measures = -advantage_T * logp, dict[str, torch.Tensor]()
        if self.reads_old:
            loss_T, measures = clipped_loss(self, (logp - predictions.logp(OLD)).exp(), advantage_T)
        if self.beta > 0:
            loss_T = loss_T + self.beta * KL_ESTIMATES[self.kl](logp, predictions.logp(BASE))
        return (predictions.weight_T * loss_T).sum(), measures | measure_targets(predictions, advantage_T)


def weighted_indices(score_N: torch.Tensor, k: int, rng: torch.Generator, temperature: float) -> torch.Tensor:
    """k distinct indices of 0 .. N-1 (all if N < k) without replacement, with probability softmax(score / temperature);
    temperature 0 takes the largest. int64, in the order of the draws. The largest of scores with Gumbel noise are such
    draws (Gumbel top-k)."""
    gumbel_N = -torch.empty_like(score_N).exponential_(generator=rng).log()
    return (score_N + temperature * gumbel_N).topk(min(k, len(score_N))).indices
