"""Mask-Aware Policy Gradients (arXiv 2607.15200): PPO on tokens, and on the choice of their positions."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from lfpo.config import clipped as settings
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.policy_gradient import clipped_loss
from lfpo.objectives.sequences import Sequences, number_of_units
from lfpo.objectives.step_views import step_views


class MaskAware(settings.MaskAware, Objective):
    """The mean over rollouts of L(l) + position_weight L(m), each of the form

        L(v) = -min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A), s = exp(mean over tokens of v - v_old).

    The scheduled steps of a rollout are cut into `segments` of equal numbers, of which mc_samples that revealed scored
    tokens are drawn. In the state before a segment, a token y that it revealed has l = log p(y) and

        m = z_y / tau - log(e^(z_y / tau) + sum over the positions j of later segments of e^(max z_j / tau)),

    with logits z: the chance that its position is chosen before any of those (Plackett-Luce).

    The paper was read in its abstract only: formulas are those of the public code, defaults those of its recipe for
    GSM8K, which its authors call a draft. None of the code's other forms is here (Bradley-Terry, competitors within a
    segment, clips of tokens). The recipe reveals the most confident positions, so m is of a rule that did not sample;
    the reveal rule "plackett_luce" draws positions.

    In the code a segment does not hold its first step but that of the next one, so the tokens of a rollout's first step
    are never hidden nor scored, and segments are drawn for a batch, not for a rollout. As there, positions after the
    first EOS and those of later sampling blocks compete, although the sampler could not have chosen the latter.
    """

    normalizer = number_of_units
    needs = frozenset({"masks", "reveal_step", "full_attention", "unedited"})

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """At most mc_samples views a rollout, which form a unit."""
        segments = []  # row, first and last step
        spent = trajectory.scheduled_steps.tolist()
        for row, (steps, seed) in enumerate(zip(trajectory.distinct_steps(), seeds, strict=True)):
            total = trajectory.sampler.steps or spent[row]
            held = (steps * self.segments // total).unique()
            drawn = held[torch.randperm(len(held), generator=generator(seed, "segments", inner))[: self.mc_samples]]
            for n in drawn.sort().values.tolist():  # the steps t of segment n: n <= t segments / total < n + 1
                segments.append((row, -(-n * total // self.segments), -(-(n + 1) * total // self.segments) - 1))
        return self.segment_views(trajectory, *torch.tensor(segments, device=trajectory.tokens.device).unbind(1))

    def segment_views(
        self, trajectory: Trajectory, row_S: torch.Tensor, first_S: torch.Tensor, last_S: torch.Tensor
    ) -> Views:
        """The states before given segments of given rows. Targets of weight 1 are the scored tokens that the segment
        revealed, those of weight 0 the positions that compete with them."""
        views = step_views(trajectory, row_S, first_S, last_S=last_S)
        later_SC = trajectory.reveal_step[row_S] > last_S[:, None]
        later_SL = F.pad(later_SC, (views.target.shape[1] - later_SC.shape[1], 0))
        return dataclasses.replace(views, target=views.target | later_SL, unit=row_S)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        sequences = Sequences(predictions.views)

        def clipped(now_T: torch.Tensor, old_T: torch.Tensor) -> tuple[torch.Tensor, Measures]:
            change_U = sequences.weighted(now_T - old_T) / sequences.weight_U
            return clipped_loss(self, change_U.exp(), signal_B[sequences.row_U])

        loss_U, measures = clipped(predictions.logp(CURRENT), predictions.logp(OLD))
        if self.position_weight > 0:
            now_T, old_T = (self.position_logp(predictions, policy) for policy in (CURRENT, OLD))
            loss_U = loss_U + self.position_weight * clipped(now_T, old_T)[0]
        scored_T = predictions.at_targets(signal_B) * predictions.weight_T  # 0: competitors are neither good nor bad
        return loss_U.sum(), measures | measure_targets(predictions, scored_T)

    def position_logp(self, predictions: Predictions, policy: str) -> torch.Tensor:
        """m of each target [T]; 0 at those that compete."""
        model, view_T, revealed_T = predictions.policies[policy], predictions.view_T, predictions.weight_T > 0

        def scores(hidden: torch.Tensor, labels: torch.Tensor, revealed: torch.Tensor) -> torch.Tensor:
            z = model.head(hidden) / self.position_temperature
            return torch.where(revealed, z.gather(1, labels[:, None]).squeeze(1), z.amax(-1))

        score_T = predictions.in_chunks(scores, policy, predictions.labels_T, revealed_T)
        # log of the sum over competitors, by its largest term; the last segment has none.
        rivals_T = score_T.masked_fill(revealed_T, -torch.inf)
        empty_S = score_T.new_full((len(predictions.views),), -torch.inf)
        peak_S = empty_S.scatter_reduce(0, view_T, rivals_T.detach(), "amax")
        odds_T = (rivals_T - peak_S.clamp(min=torch.finfo(peak_S.dtype).min)[view_T]).exp()
        sum_S = torch.zeros_like(peak_S).index_add(0, view_T, odds_T).clamp(min=1)  # the largest counts 1
        later_S = peak_S + sum_S.log()
        return (score_T - torch.logaddexp(score_T, later_S[view_T])).masked_fill(~revealed_T, 0)
