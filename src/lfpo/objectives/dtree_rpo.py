"""d-TreeRPO (arXiv 2512.09675): PPO on the edges of trees of rollouts, and distillation of their best edges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from lfpo.base import distributed
from lfpo.base.checks import at_least_one, in_unit_interval, not_negative, positive
from lfpo.objectives.advantages import check_groups
from lfpo.objectives.distillation import divergence, sibling_shares
from lfpo.objectives.measures import Measures, measure_targets
from lfpo.objectives.policy_gradient import clipped_losses
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, noised
from lfpo.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class DTreeRPO:
    """The mean over edges of the mean, over the tokens that the edge reveals, of PPO's clipped loss plus beta times k3
    to the base policy, plus lambda D. Tokens are scored in the edge's first state, up to the first EOS of its last.

    A is the value of the edge's last node minus that of its first (the mean of siblings). An edge without scored tokens
    counts as 0 in the mean.

    D: in each state with children of A > 0, weighted by softmax(A / tau), their tokens at a position make a
    distribution q; D is the mean over positions of KL(q || p), p the policy in that state. In training's share u,
    lambda = lambda_max (e^(growth u) - 1) / (e^growth - 1), tau = tau_max (1 - u)^decay, at least 1e-6.

    epsilon, epsilon_high: clip of the ratio. progress: u (None: as training goes on).
    Defaults are the authors', with trees of branching 4, 4 (`tree: [4, 4]`).

    The public code takes a token of probability 1 for one that is not scored, and moves its reference every 64 steps;
    here the base policy stays where training started.
    """

    num_iterations: int = 12
    epsilon: float = 0.4
    epsilon_high: float | None = None
    beta: float = 0.01
    lambda_max: float = 3e-3
    growth: float = 2.0
    tau_max: float = 2.0
    decay: float = 0.7
    progress: float | None = None
    needs: ClassVar[frozenset[str]] = frozenset({"reveal_step", "tree"})

    def __post_init__(self) -> None:
        at_least_one(self, "num_iterations")
        not_negative(self, "epsilon", "epsilon_high", "beta", "lambda_max", "decay")
        positive(self, "growth", "tau_max")
        in_unit_interval(self, "progress")

    @property
    def needs_base(self) -> bool:
        return self.beta > 0

    def at_progress(self, share: float) -> DTreeRPO:
        return self if self.progress is not None else dataclasses.replace(self, progress=share)

    def signal(self, values_BN: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        """A of each edge of a rollout, [B, levels]."""
        check_groups(group_B)
        return values_BN.diff(dim=1)

    def views(self, trajectory: Trajectory, signal_BL: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """A view of each edge, numbered by its level; the edges of a parent form a unit."""
        node, steps = trajectory.node, trajectory.sampler.steps
        assert node is not None and steps
        levels = node.shape[1] - 1
        # An edge is that of the first of these rollouts that goes through its last node.
        first = (node[:, None, 1:] == node[None, :, 1:]).int().argmax(1)
        row_S, level_S = (first == torch.arange(len(node), device=node.device)[:, None]).nonzero().unbind(-1)
        from_S = level_S * (steps // levels)
        parent_S = node[row_S, level_S] * levels + level_S
        return self.edge_views(trajectory, signal_BL, row_S, level_S, parent_S, from_S, from_S + steps // levels)

    def edge_views(self, trajectory: Trajectory, signal_BL: torch.Tensor, *edges: torch.Tensor) -> Views:
        """Views of edges, given by rollout, level, parent, and the steps of both ends, each [S]. Second weights are the
        edges' shares of their positions."""
        row_S, level_S, parent_S, from_S, to_S = edges
        rows = trajectory.rows(row_S)
        now = (rows.reveal_step >= 0) & (rows.reveal_step < to_S[:, None])
        ends = ((rows.tokens == rows.eos_id) & now).int()
        target = now & (rows.reveal_step >= from_S[:, None]) & (ends.cumsum(-1) - ends == 0)
        weight, masked = target / target.sum(-1, keepdim=True).clamp(min=1), rows.masked_before(from_S)
        views = noised(trajectory, row_S, masked, target, weight_SC=weight, unit_S=parent_S, state_S=level_S)
        tau = max(self.tau_max * (1 - (self.progress or 0.0)) ** self.decay, 1e-6)
        return dataclasses.replace(views, second=sibling_shares(views, signal_BL[row_S, level_S], tau))

    def prepare(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The edges with scored tokens, weighted for means over all edges and over all good positions, on all ranks. A
        collective; no policy runs."""
        kept = views.select(views.target.any(-1).nonzero().flatten())
        share_SL = kept.weight if kept.second is None else kept.second  # None where a rank has no edges
        n, edges, positions = (distributed.sum_number(float(x)) for x in (len(kept), len(views), share_SL.sum()))
        weight, second = kept.weight * (n / max(edges, 1.0)), share_SL * (n / max(positions, 1.0))
        return dataclasses.replace(kept, weight=weight, second=second)

    def loss(self, predictions: Predictions, signal_BL: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        advantage_T = predictions.at_targets(signal_BL)
        loss_T, measures = clipped_losses(self, predictions.logp, advantage_T)
        loss = (predictions.weight_T * loss_T).sum() + self.strength * divergence(predictions)
        return loss, measures | measure_targets(predictions, advantage_T)

    @property
    def strength(self) -> float:
        """lambda."""
        return self.lambda_max * math.expm1(self.growth * (self.progress or 0.0)) / math.expm1(self.growth)

    def normalizer(self, views: Views) -> float:
        """The number of edges with scored tokens."""
        return float(len(views))
