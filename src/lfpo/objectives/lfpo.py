"""LFPO: Likelihood-Free Policy Optimization (arXiv 2603.01563, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lfpo.base.checks import at_least_one, not_negative, positive
from lfpo.base.errors import UserError
from lfpo.base.rng import generator
from lfpo.models.roles import BASE, CURRENT, OLD
from lfpo.objectives.advantages import group_advantages, group_means
from lfpo.objectives.masks import stratified_masks
from lfpo.objectives.measures import Measures, measure_targets
from lfpo.objectives.ops.fused import rectified_sum
from lfpo.objectives.ops.rectified import printed_sum
from lfpo.objectives.policy_gradient import k3
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, drawn_states, listed, noised, replay
from lfpo.rollout.trajectory import Trajectory, stratified_indices, uniform_indices, weighted_indices


@dataclass(frozen=True)
class LFPO:
    """Pull the denoising logits towards tokens of good rollouts and away from those of bad ones.

    beta: how far the implicit policies pi+- stand from the reference; the loss is divided by it, so it does not scale
        the first gradient. Smaller learns faster and drifts further (the optimum is KL-regularised RL at beta / 2).
    timesteps: K, replayed states per rollout.
    states: how their steps are drawn. "stratified": one from each of K equal segments of the rollout's steps (Eq. 11).
        "uniform": from all steps alike, for comparison. "surprisal", "entropy": with probability softmax(s), where s is
        the mean of -log p of the tokens that a step wrote, or of the entropy they were drawn from; without importance
        weights, so the loss is another one. "noised": K random masks of the completion with stratified sizes instead of
        states of the rollout, as DiffusionNFT (arXiv 2509.16117) noises samples; a rollout of few steps visits few.
    reward_transform: "centered" turns the group-relative advantage into r = 1/2 + clip(A, -c, c) / (2 c), as in
        DiffusionNFT; "raw" takes r to be the reward itself, as printed, which must then lie in [0, 1].
    clip: c above. deviation: the unit of A and c: the standard deviation of the "batch"'s rewards, that of the "group",
        or "one" (rewards as they are).
    baseline: the share of the group's mean reward that the advantage subtracts. 1: all of it, as published. Below 1,
        the right rollouts of a group that agrees are imitated, and wrong ones are pushed away less (a lower baseline:
        arXiv 2506.20520). 0: imitation alone, weighted by rewards. Below 1, rewards must not be negative. In units of
        the batch's deviation imitation grows as the batch agrees, up to r = 1 where all are right; `deviation: one`
        keeps it constant. `refill` replaces groups that agree, so nothing of theirs is imitated.
    num_iterations: passes through each batch of rollouts; each draws new timesteps.
    positive_weight, negative_weight: weights on the two branches; (1, 0) and (0, 1) are the paper's ablations.
    target_weight: weight w of a target. "equal": 1, as published. "p_old": the probability p_old(y) of its token under
        theta_old in that state. "ratio": p_old(y) over the token's probability when it was written, at most 1. Both
        weigh down tokens that the state does not determine yet. The sum is divided by the number of targets.
    base_kl: weight of k3 to the base policy at each target, beside the loss (0: no base policy).
    reading: "rectified" is the loss with the sampled token (see ops.rectified.rectified_loss). "printed" and
        "printed_through" are Eq. 10 to the letter, with the targets fixed or not; neither can learn from rewards
        (see ops.rectified.printed_loss); they are here to show that.
    """

    beta: float = 0.3
    timesteps: int = 4
    states: Literal["stratified", "uniform", "surprisal", "entropy", "noised"] = "stratified"
    reward_transform: Literal["centered", "raw"] = "centered"
    clip: float = 1.0
    deviation: Literal["batch", "group", "one"] = "batch"
    baseline: float = 1.0
    num_iterations: int = 1
    positive_weight: float = 1.0
    negative_weight: float = 1.0
    target_weight: Literal["equal", "p_old", "ratio"] = "equal"
    base_kl: float = 0.0
    reading: Literal["rectified", "printed", "printed_through"] = "rectified"

    def __post_init__(self) -> None:
        positive(self, "beta", "clip")
        at_least_one(self, "timesteps", "num_iterations")
        not_negative(self, "positive_weight", "negative_weight", "base_kl")
        if self.positive_weight + self.negative_weight == 0:
            raise ValueError("positive_weight and negative_weight must not both be zero")
        if not 0 <= self.baseline <= 1:
            raise ValueError(f"baseline must be from 0 to 1, found {self.baseline:g}")
        if self.baseline < 1 and (self.reward_transform == "raw" or self.deviation == "group"):
            raise ValueError(
                "baseline below 1 needs reward_transform 'centered' and deviation 'batch' or 'one': raw rewards have "
                "no baseline, and a group that agrees has no deviation"
            )
        if self.target_weight != "equal" and self.reading != "rectified":
            raise ValueError(f"target_weight {self.target_weight!r} needs reading 'rectified', found {self.reading!r}")

    @property
    def needs(self) -> frozenset[str]:
        confidence = self.target_weight == "ratio" or self.states == "surprisal"
        asked = {"reveal_step": self.states != "noised", "confidence": confidence, "entropy": self.states == "entropy"}
        return frozenset(name for name, needed in asked.items() if needed)

    @property
    def needs_base(self) -> bool:
        return self.base_kl > 0

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """r in [0, 1] for each rollout."""
        if self.reward_transform == "raw":
            outside = (rewards_B < 0) | (rewards_B > 1)
            if outside.any():
                value = float(rewards_B[outside][0])
                raise UserError(
                    f"reward {value:g} is outside [0, 1], which reward_transform 'raw' needs; use 'centered'"
                )
            return rewards_B
        advantage = group_advantages(rewards_B, group_B, "zscore" if self.deviation == "group" else "mean")
        if self.baseline < 1:
            if rewards_B.min() < 0:
                raise UserError(
                    f"reward {float(rewards_B.min()):g} is negative; baseline {self.baseline:g} imitates rollouts by "
                    "their rewards, so it needs rewards of at least 0"
                )
            advantage = advantage + (1 - self.baseline) * group_means(rewards_B, group_B)
        if self.deviation == "batch":
            advantage = advantage / (rewards_B.std(correction=0) + 1e-4)
        return 0.5 + advantage.clamp(-self.clip, self.clip) / (2 * self.clip)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int = 0) -> Views:
        """States the sampler really visited, at K timesteps of each row (Eq. 11), or of each block of a row where the
        model attends block by block. Uncertain and noised states are K of the row in either case."""
        rngs = [generator(seed, "timesteps", inner) for seed in seeds]
        if self.states in ("surprisal", "entropy"):
            views = replay(trajectory, *self._uncertain_states(trajectory, rngs))
        elif self.states == "noised":
            views = self._noised_states(trajectory, seeds, inner)
        else:
            pick = stratified_indices if self.states == "stratified" else uniform_indices
            views = replay(trajectory, *drawn_states(trajectory, lambda row, n: pick(n, self.timesteps, rngs[row])))
        if self.target_weight == "ratio":
            confidence_SC = trajectory.final_confidence[views.row].clamp(min=1e-12)
            views.weight[:, -confidence_SC.shape[1] :] /= confidence_SC
        return views

    def _noised_states(self, trajectory: Trajectory, seeds: Sequence[int], inner: int) -> Views:
        """K masks of all that the sampler revealed. Positions up to the first EOS are targets."""
        masked_KBC = stratified_masks(trajectory.scored(True), seeds, inner, count=self.timesteps, least=1)
        row_S = torch.arange(len(trajectory), device=masked_KBC.device).repeat_interleave(self.timesteps)
        masked_SC = masked_KBC.transpose(0, 1).flatten(0, 1)
        state_S = torch.arange(self.timesteps, device=row_S.device).repeat(len(trajectory))
        return noised(trajectory, row_S, masked_SC, masked_SC & trajectory.counted[row_S], state_S=state_S)

    def _uncertain_states(
        self, trajectory: Trajectory, rngs: Sequence[torch.Generator]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [S] and steps [S], drawn by the surprisal or entropy of what the steps wrote."""
        if self.states == "surprisal":
            score_BW = -trajectory.with_edits("confidence").double().clamp(min=1e-12).log()
        else:
            score_BW = trajectory.with_edits("entropy").double()
        found = zip(trajectory.distinct_steps(), trajectory.step_means(score_BW), rngs, strict=True)
        return listed(
            [s[weighted_indices(score, self.timesteps, rng).sort().values] for s, score, rng in found], trajectory
        )

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        """sum over T targets of -w [w+ r log pi+(y) + w- (1 - r) log pi-(y)] / beta (Eq. 10, sampled-token reading),

        where pi+ = softmax((1 - beta) z_old + beta z) and pi- = softmax((1 + beta) z_old - beta z) (Eq. 8, 9), and w is
        1, or the weight that `target_weight` names; plus base_kl times the sum of k3 to the base policy.
        """
        r_T, y_T = predictions.at_targets(signal_B), predictions.labels_T
        hidden_TD, hidden_old_TD = predictions.hidden(CURRENT), predictions.hidden(OLD)
        head_VD, head_old_VD = predictions.head(CURRENT), predictions.head(OLD)  # z = hidden_TD @ head_VD.T
        weights = {"positive_weight": self.positive_weight, "negative_weight": self.negative_weight}
        knobs: dict[str, Any] = {"beta": self.beta, "precision": predictions.policies[CURRENT].products, **weights}
        if self.reading == "rectified":
            w_T = None
            if self.target_weight != "equal":  # views have 1, or for "ratio" 1 / confidence
                w_T = (predictions.weight_T * predictions.logp(OLD).exp()).clamp(max=1.0)
            loss = rectified_sum(hidden_TD, hidden_old_TD, head_VD, head_old_VD, y_T, r_T, w_T, **knobs)
        else:
            through = self.reading == "printed_through"
            loss = printed_sum(hidden_TD, hidden_old_TD, head_VD, head_old_VD, r_T, through=through, **knobs)
        if self.needs_base:
            loss = loss + self.base_kl * k3(predictions.logp(), predictions.logp(BASE)).sum()
        return loss, measure_targets(predictions, r_T, neutral=0.5, beta=self.beta)

    def normalizer(self, views: Views) -> float:
        """All target positions of the step."""
        return float(views.target.sum())
