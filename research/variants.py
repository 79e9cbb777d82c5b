"""Objectives of the study that are not part of the package: `objective: {name: research.variants:NAME, ...}`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lfpo.core.advantages import group_advantages
from lfpo.core.fused import rectified_sum
from lfpo.core.groups import batch_ranks, group_means, group_ranges
from lfpo.core.lfpo import LFPO
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views
from lfpo.objectives.agrpo import AGRPO
from lfpo.objectives.coupled_grpo import CoupledGRPO
from lfpo.objectives.diffu_grpo import DiffuGRPO
from lfpo.objectives.dtm import DTM, mixture_sum
from lfpo.objectives.espo import ESPO
from lfpo.objectives.policy_gradient import clipped_loss
from lfpo.objectives.rejection import Rejection
from lfpo.objectives.spg import SPG
from lfpo.objectives.unigrpo import UniGRPO


@dataclass(frozen=True)
class AnchoredLFPO(LFPO):
    """LFPO whose wrong rollouts hold theta at theta_old instead of pushing their tokens away, as DTM's do.

    anchor: a in -[r log pi+(y) + (1 - a) (1 - r) log pi-(y)] / beta - a (1 - r) sum over v of p_old(v) log p(v).
        negative_weight must be given as 1 - a.
    """

    anchor: float = 0.0

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        loss, measures = super().loss(predictions, signal_B)
        if self.anchor:
            share_T = self.anchor * (1 - predictions.at_targets(signal_B))
            if self.target_weight == "p_old":
                share_T = share_T * predictions.logp(OLD).exp()
            states = (predictions.hidden(CURRENT), predictions.hidden(OLD))
            heads = (predictions.policies[CURRENT].head_weight, predictions.policies[OLD].head_weight)
            shares = (share_T, torch.zeros_like(share_T))
            precision = predictions.policies[CURRENT].products
            loss = loss + mixture_sum(*states, *heads, predictions.labels_T, *shares, precision)
        return loss, measures


@dataclass(frozen=True)
class StateLFPO(LFPO):
    """LFPO on noised states that weigh alike whatever the number of their targets, as DTM's do."""

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int = 0) -> Views:
        views = super().views(trajectory, signal_B, seeds, inner)
        views.weight = views.target / views.target.sum(-1, keepdim=True).clamp(min=1)
        return views

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        r_T, w_T = predictions.at_targets(signal_B), predictions.weight_T
        if self.target_weight == "p_old":
            w_T = w_T * predictions.logp(OLD).exp()
        states = (predictions.hidden(CURRENT), predictions.hidden(OLD))
        heads = (predictions.policies[CURRENT].head_weight, predictions.policies[OLD].head_weight)
        precision = predictions.policies[CURRENT].products
        loss = rectified_sum(*states, *heads, predictions.labels_T, r_T, w_T, beta=self.beta, precision=precision)
        return loss, measure_targets(predictions, r_T, neutral=0.5, beta=self.beta)

    def normalizer(self, views: Views) -> float:
        return float(views.target.any(-1).sum())


@dataclass(frozen=True)
class HeldLFPO(LFPO):
    """LFPO whose targets all hold theta at theta_old besides, as DTM's do: plus `hold` times CE to p_old.

    The weight of a target applies to both terms.
    """

    hold: float = 0.0

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        loss, measures = super().loss(predictions, signal_B)
        share_T = torch.full_like(predictions.weight_T, self.hold)
        if self.target_weight == "p_old":
            share_T = share_T * predictions.logp(OLD).exp()
        states = (predictions.hidden(CURRENT), predictions.hidden(OLD))
        heads = (predictions.policies[CURRENT].head_weight, predictions.policies[OLD].head_weight)
        shares = (share_T, torch.zeros_like(share_T))
        precision = predictions.policies[CURRENT].products
        return loss + mixture_sum(*states, *heads, predictions.labels_T, *shares, precision), measures


@dataclass(frozen=True)
class CentredDTM(DTM):
    """DTM that tilts by the reward minus a share `baseline` of its group's mean, so wrong ones are pushed away.

    p_old: whether targets weigh by theta_old's probability of their token.
    """

    baseline: float = 0.0
    p_old: bool = False

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        return torch.expm1(self.tilt * (reward_R - self.baseline * group_means(reward_R, group_R)))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        if self.p_old:
            with torch.no_grad():
                predictions.weight_T = predictions.weight_T * predictions.logp(OLD).exp()
        return super().loss(predictions, signal_B)


@dataclass(frozen=True)
class BatchRangeLFPO(LFPO):
    """LFPO in units of the range of the batch's rewards, as up to commit 54a66ad."""

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        lowest, highest = reward_R.aminmax()
        advantage = group_advantages(reward_R, group_R, "mean")
        advantage = advantage + (1 - self.baseline) * (group_means(reward_R, group_R) - lowest)
        advantage = advantage / (highest - lowest).clamp(min=1e-9)
        return 0.5 + advantage.clamp(-self.clip, self.clip) / (2 * self.clip)


@dataclass(frozen=True)
class RankLFPO(LFPO):
    """LFPO whose rewards are their ranks in the batch, so one unit for all groups."""

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        ranks_R = batch_ranks(reward_R)
        advantage = ranks_R - self.baseline * group_means(ranks_R, group_R)
        return 0.5 + advantage.clamp(-self.clip, self.clip) / (2 * self.clip)


@dataclass(frozen=True)
class GuardedLFPO(LFPO):
    """LFPO whose baseline rises to the group's mean where the batch is mostly wrong.

    What the lower baseline adds is scaled by min(1, level / competent), with level the mean rank of the batch.
    """

    competent: float = 0.3

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        ranks_R = batch_ranks(reward_R)
        advantage = group_advantages(reward_R, group_R, "mean") / group_ranges(reward_R, group_R)
        share = (1 - self.baseline) * min(1.0, float(ranks_R.mean()) / self.competent)
        advantage = advantage + share * group_means(ranks_R, group_R)
        return 0.5 + advantage.clamp(-self.clip, self.clip) / (2 * self.clip)


def lowered(reward_R: torch.Tensor, group_R: torch.Tensor, baseline: float) -> torch.Tensor:
    """What a baseline below the group's mean adds to an advantage in units of rewards."""
    return (1 - baseline) * group_means(reward_R, group_R)


class Weighted:
    """Advantages over a share of the group's mean reward, and targets that weigh by p_old of their token.

    baseline: that share; 1 is the peer as published. p_old: whether targets weigh so.
    """

    baseline: float
    p_old: bool

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        return super().signal(reward_R, group_R) + lowered(reward_R, group_R, self.baseline)  # type: ignore[misc]

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> Any:
        if self.p_old:
            with torch.no_grad():
                predictions.weight_T = predictions.weight_T * predictions.logp(OLD).exp()
        return super().loss(predictions, signal_B)  # type: ignore[misc]


@dataclass(frozen=True)
class WeightedUniGRPO(Weighted, UniGRPO):  # type: ignore[misc]
    baseline: float = 1.0
    p_old: bool = False


@dataclass(frozen=True)
class WeightedAGRPO(Weighted, AGRPO):
    baseline: float = 1.0
    p_old: bool = False


@dataclass(frozen=True)
class LoweredCoupledGRPO(CoupledGRPO):
    """A token's likelihood is a weighted sum over its views, so its targets take no further weight."""

    baseline: float = 1.0

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        return super().signal(reward_R, group_R) + lowered(reward_R, group_R, self.baseline)


@dataclass(frozen=True)
class LoweredESPO(ESPO):
    """A rollout has one ratio, so its targets take no weight."""

    baseline: float = 1.0

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        return super().signal(reward_R, group_R) + lowered(reward_R, group_R, self.baseline)


@dataclass(frozen=True)
class LoweredDiffuGRPO(DiffuGRPO):
    """diffu-GRPO with a share of the group's mean as baseline."""

    baseline: float = 1.0

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        return super().signal(reward_R, group_R) + lowered(reward_R, group_R, self.baseline)


@dataclass(frozen=True)
class LoweredSPG(SPG):
    """SPG with a share of the group's mean as baseline."""

    baseline: float = 1.0

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        return super().signal(reward_R, group_R) + lowered(reward_R, group_R, self.baseline)


@dataclass(frozen=True)
class WeightedRejection(Rejection):
    """Imitation has no baseline; its targets can weigh by p_old."""

    p_old: bool = False

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        if self.p_old:
            with torch.no_grad():
                predictions.weight_T = predictions.weight_T * predictions.logp(OLD).exp()
        return super().loss(predictions, signal_B)


@dataclass(frozen=True)
class PartsLFPO(LFPO):
    """LFPO with parts of UniGRPO in place of its own, on the same signal.

    rising: states whose mask ratio starts at random and rises to 1 over the passes, as UniGRPO's; otherwise uniform.
    ratio_clip: PPO's clipped loss with the advantage that r stands for, and this epsilon; 0: the rectified loss.
    """

    rising: bool = False
    ratio_clip: float = 0.0

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int = 0) -> Views:
        if not self.rising:
            return super().views(trajectory, signal_B, seeds, inner)
        states = UniGRPO(num_iterations=self.num_iterations, after_eos=False)
        return states.views(trajectory, signal_B, seeds, inner)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        if not self.ratio_clip:
            return super().loss(predictions, signal_B)
        r_T, logp_T, old_T = predictions.at_targets(signal_B), predictions.logp(CURRENT), predictions.logp(OLD)
        advantage_T = self.clip * (2 * r_T - 1)
        knobs = UniGRPO(epsilon=self.ratio_clip)
        loss_T, measures = clipped_loss(knobs, (logp_T - old_T).exp(), advantage_T)
        w_T = old_T.exp() if self.target_weight == "p_old" else torch.ones_like(old_T)
        return (w_T * loss_T).sum(), measures | measure_targets(predictions, r_T, neutral=0.5, beta=self.beta)


@dataclass(frozen=True)
class InformedLFPO(LFPO):
    """LFPO that makes no views of neutral rollouts (r = 1/2), those of groups in which all are wrong.

    At theta_old their gradient is 0. Later their loss only keeps theta close to theta_old.
    """

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int = 0) -> Views:
        views = super().views(trajectory, signal_B, seeds, inner)
        return views.select(((signal_B[views.row] - self.neutral).abs() > 1e-9).nonzero().flatten())
