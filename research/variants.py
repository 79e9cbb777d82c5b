"""Objectives of the study that are not part of the package: `objective: {name: research.variants:NAME, ...}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lfpo.models.roles import CURRENT, OLD
from lfpo.objectives.advantages import group_means
from lfpo.objectives.agrpo import AGRPO
from lfpo.objectives.coupled_grpo import CoupledGRPO
from lfpo.objectives.espo import ESPO
from lfpo.objectives.lfpo import LFPO
from lfpo.objectives.measures import Measures
from lfpo.objectives.ops.fused import mixture_sum
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.rejection import Rejection
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
            heads = (predictions.head(CURRENT), predictions.head(OLD))
            shares = (share_T, torch.zeros_like(share_T))
            precision = predictions.policies[CURRENT].products
            loss = loss + mixture_sum(*states, *heads, predictions.labels_T, *shares, precision)
        return loss, measures


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
class WeightedUniGRPO(Weighted, UniGRPO):
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
class WeightedRejection(Rejection):
    """Imitation has no baseline; its targets can weigh by p_old."""

    p_old: bool = False

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        if self.p_old:
            with torch.no_grad():
                predictions.weight_T = predictions.weight_T * predictions.logp(OLD).exp()
        return super().loss(predictions, signal_B)
