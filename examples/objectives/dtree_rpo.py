"""d-TreeRPO (arXiv 2512.09675): PPO on the edges of trees of rollouts, and distillation of their best edges.

An objective and an engine outside the package. In this folder, or with it in PYTHONPATH:

    lfpo train sudoku --num_generations 16 --objective '{name: dtree_rpo:DTreeRPO, tree: [4, 4]}' \\
        --engine.name dtree_rpo:tree_engine

A tree of branching [b_1, .., b_n] has n levels, edges of equally many scheduled steps. Its root is the prompt, each
node of a level has as many children as the next number says, and its leaves are finished completions. A rollout's noise
is a function of its seed, so rollouts with the same seed are the same: all leaves below a node take the seed of the
first of them up to the node. Forwards that leaves share are run for each of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lfpo.config.checks import Count, NotNegative, Positive, Share
from lfpo.config.clipped import Clip
from lfpo.config.errors import UserError
from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.contrib.states import StateViews, of_states, with_states
from lfpo.core import collectives
from lfpo.core.active_rows import ActiveRows
from lfpo.core.advantages import group_advantages
from lfpo.core.engine import Request
from lfpo.core.groups import check_groups, group_sizes
from lfpo.core.hooks import DrawnTokens, Hook
from lfpo.core.measures import Measures, measure_targets
from lfpo.core.objective import Objective
from lfpo.core.predictions import Predictions
from lfpo.core.schedule import reveal_schedule
from lfpo.core.trajectory import GIVES, Trajectory
from lfpo.core.views import Views, noised
from lfpo.models import MaskedDiffusionLM
from lfpo.objectives.policy_gradient import clipped_losses
from lfpo.rollout.local_engine import LocalEngine, run_unit
from lfpo.rollout.sampling import local_engine, rollout


@dataclass(frozen=True)
class DTreeRPO(Clip, Objective):
    """The mean over edges of the mean, over the tokens that the edge reveals, of PPO's clipped loss plus beta times k3
    to the base policy, plus lambda D. Tokens are scored in the edge's first state, up to the first EOS of its last.

    A is the value of the edge's last node minus that of its first (the mean of siblings). An edge without scored tokens
    counts as 0 in the mean.

    D: in each state with children of A > 0, weighted by softmax(A / tau), their tokens at a position make a
    distribution q; D is the mean over positions of KL(q || p), p the policy in that state. In training's share u,
    lambda = lambda_max (e^(growth u) - 1) / (e^growth - 1), tau = tau_max (1 - u)^decay, at least 1e-6.

    tree: the branching; num_generations must be its product. epsilon, epsilon_high: clip of the ratio. progress: u
        (None: as training goes on).
    Defaults are the authors'.

    The public code takes a token of probability 1 for one that is not scored, and moves its reference every 64 steps;
    here the base policy stays where training started.
    """

    tree: list[int] = field(default_factory=lambda: [4, 4])
    num_iterations: Count = 12
    epsilon: NotNegative = 0.4
    beta: NotNegative = 0.01
    lambda_max: NotNegative = 3e-3
    growth: Positive = 2.0
    tau_max: Positive = 2.0
    decay: NotNegative = 0.7
    progress: Share | None = None
    needs = frozenset({"reveal_step", "tree", "full_attention"})
    whole_groups = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tree or min(self.tree) < 1:
            raise ValueError(f"tree {self.tree} must be a list of branchings, each at least 1")

    def at_progress(self, share: float) -> DTreeRPO:
        return self if self.progress is not None else dataclasses.replace(self, progress=share)

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise UserError where rollouts of a sampler cannot branch."""
        own_pace = sampler.rule_name in ("origin", "low_confidence_dynamic")
        if sampler.steps is None or own_pace or sampler.stops_at_confidence:
            raise UserError(
                f"tree {self.tree} needs a schedule that says how many positions each step reveals, which the reveal "
                f"rule {sampler.rule_name!r} with early_stop {sampler.early_stop!r} does not follow"
            )
        if sampler.steps % len(self.tree):
            raise UserError(
                f"tree {self.tree} has {len(self.tree)} levels, which do not divide the sampler's {sampler.steps} steps"
            )
        if int(reveal_schedule(sampler).min()) < 1:
            raise UserError(
                f"tree {self.tree} needs a token revealed at every step, and {sampler.steps} steps for gen_length "
                f"{sampler.gen_length} have some that reveal none; lower sampler.steps"
            )

    def signal(self, reward_R: torch.Tensor, group_R: torch.Tensor) -> torch.Tensor:
        """How much better a rollout is than the mean of its tree. `edge_advantages` are those of the loss."""
        check_groups(group_R)
        if bool((group_sizes(group_R) != math.prod(self.tree)).any()):
            raise UserError(
                f"tree {self.tree} has {math.prod(self.tree)} leaves; set 'num_generations' to that, found "
                f"{int(group_sizes(group_R)[0])}"
            )
        return group_advantages(reward_R, group_R, "mean")

    def edge_advantages(self, value_B: torch.Tensor) -> torch.Tensor:
        """A of each edge that a rollout goes through, [B, levels]: what its last node is worth above its first.
        value_B: of the leaves, rewards or their distances from the tree's mean."""
        return node_values(value_B, self.tree).diff(dim=1)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        """A view of each edge, numbered by its level; the edges of a parent form a unit."""
        levels, per_level = len(self.tree), (trajectory.sampler.steps or 0) // len(self.tree)
        node = nodes(len(trajectory), self.tree).to(trajectory.tokens.device)
        # An edge is that of the first of these rollouts that goes through its last node.
        first = node[:, 1:] == torch.arange(len(node), device=node.device)[:, None]
        row_S, level_S = first.nonzero().unbind(-1)
        from_S = level_S * per_level
        parent_S = node[row_S, level_S] * levels + level_S
        advantage_S = self.edge_advantages(signal_B)[row_S, level_S]
        return self.edge_views(trajectory, advantage_S, row_S, level_S, parent_S, from_S, from_S + per_level)

    def edge_views(self, trajectory: Trajectory, advantage_S: torch.Tensor, *edges: torch.Tensor) -> StateViews:
        """Views of edges, given by their advantages, rollout, level, parent, and the steps of both ends, each [S].
        Second weights are the edges' shares of their positions."""
        row_S, level_S, parent_S, from_S, to_S = edges
        rows = trajectory.rows(row_S)
        now = (rows.reveal_step >= 0) & (rows.reveal_step < to_S[:, None])
        ends = ((rows.tokens == rows.eos_id) & now).int()
        target = now & (rows.reveal_step >= from_S[:, None]) & (ends.cumsum(-1) - ends == 0)
        weight, masked = target / target.sum(-1, keepdim=True).clamp(min=1), rows.masked_before(from_S)
        views = noised(trajectory, row_S, masked, target, weight_SC=weight, unit_S=parent_S, state_S=level_S)
        tau = max(self.tau_max * (1 - (self.progress or 0.0)) ** self.decay, 1e-6)
        return with_states(views, advantage_S, sibling_shares(views, advantage_S, tau))

    def before_passes(self, views: Views, logp: Callable[[Views, str], torch.Tensor]) -> Views:
        """The edges with scored tokens, weighted for means over all edges and over all good positions, on all ranks. A
        collective; no policy runs."""
        kept = views.select(views.target.any(-1).nonzero().flatten())
        share_SL = kept.second if isinstance(kept, StateViews) else kept.weight  # a rank without edges has plain views
        n, edges, positions = (collectives.sum_number(float(x)) for x in (len(kept), len(views), share_SL.sum()))
        kept = dataclasses.replace(kept, weight=kept.weight * (n / max(edges, 1.0)))
        if not isinstance(kept, StateViews):
            return kept
        return dataclasses.replace(kept, second=share_SL * (n / max(positions, 1.0)))

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        advantage_T, share_T = of_states(predictions)
        loss_T, measures = clipped_losses(self, predictions.logp, advantage_T)
        loss = (predictions.weight_T * loss_T).sum() + self.strength * divergence(predictions, share_T)
        return loss, measures | measure_targets(predictions, advantage_T)

    @property
    def strength(self) -> float:
        """lambda."""
        return self.lambda_max * math.expm1(self.growth * (self.progress or 0.0)) / math.expm1(self.growth)

    def normalizer(self, views: Views) -> float:
        """The number of edges with scored tokens."""
        return float(len(views))


def sibling_shares(views: Views, advantage_S: torch.Tensor, temperature: float) -> torch.Tensor:
    """The share of each target in what the good views of its unit show at its position, float32 [S, L]: the softmax of
    their advantages over the temperature. The shares of a position add up to 1. Views with A <= 0 have none.

    Units are parent states, their views the edges to their children.
    """
    sibling_SS = views.unit[:, None] == views.unit
    score_S = (advantage_S / temperature).where(advantage_S > 0, -torch.inf)
    best_S = score_S.where(sibling_SS, 0.0).amax(1).clamp(min=0)
    mass_SL = (score_S - best_S).exp()[:, None] * views.target
    total_SL = sibling_SS.to(mass_SL.dtype) @ mass_SL
    return (mass_SL / total_SL.clamp(min=1e-8)).float()


def divergence(predictions: Predictions, share_T: torch.Tensor) -> torch.Tensor:
    """The sum over positions of w KL(q || p), a scalar, with p the current policy. share_T: the shares, each multiplied
    by the weight w of its position; siblings must be in one pass."""
    views = predictions.views
    place_T = views.unit[predictions.view_T] * views.labels.shape[1] + predictions.column_T

    def total(key_T: torch.Tensor) -> torch.Tensor:
        """The sum of the shares of all targets with the same key, [T]."""
        _, index_T = key_T.unique(return_inverse=True)
        return torch.zeros_like(share_T).index_add(0, index_T, share_T)[index_T]

    token_T = place_T * (int(views.labels.max()) + 1) + predictions.labels_T
    q_T = total(token_T) / total(place_T).clamp(min=1e-30)
    return (share_T * ((q_T + 1e-8).log() - predictions.logp())).sum()


def _leaves_below(tree: Sequence[int]) -> list[int]:
    """The number of leaves below a node of each level, the root's first."""
    return [math.prod(tree[level:]) for level in range(len(tree) + 1)]


def nodes(rows: int, tree: Sequence[int]) -> torch.Tensor:
    """For each node of a tree that a rollout goes through, from the root to its leaf, the first rollout that does,
    int64 [rows, levels + 1]. The rollouts are those of whole trees, in order."""
    index = torch.arange(rows)
    return torch.stack([index - index % n for n in _leaves_below(tree)], dim=1)


def node_values(reward_R: torch.Tensor, tree: Sequence[int]) -> torch.Tensor:
    """The values of the nodes that each rollout goes through, from the root to its leaf, [R, levels + 1]: the mean of
    the values of a node's children, of a leaf its reward. reward_R: of whole trees, in order."""
    means = [reward_R.view(-1, n).mean(1, keepdim=True).expand(-1, n).flatten() for n in _leaves_below(tree)]
    return torch.stack(means, dim=1)


class Branch(Hook):
    """Gives each row the seed of the edge that its next step lies on: that of the first leaf below the edge's end."""

    def __init__(self, seeds: Sequence[int], tree: Sequence[int], steps: int, device: torch.device):
        seed_B = torch.tensor(list(seeds), device=device)
        self.seed_BL = seed_B[nodes(len(seeds), tree).to(device)[:, 1:]]  # one for each level
        self.per_level = steps // len(tree)

    def __call__(self, active: ActiveRows, drawn: DrawnTokens) -> None:
        level = ((drawn.at + 1) // self.per_level).clamp(max=self.seed_BL.shape[1] - 1)
        active.seed = torch.where(drawn.alive, self.seed_BL[active.row, level], active.seed)


def tree_rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    seeds: Sequence[int],
    tree: Sequence[int],
    **how: Any,
) -> Trajectory:
    """Denoise one completion for each of B prompts, which come in runs of prod(tree) equal ones: the leaves of a tree.

    The arguments but `tree`, and the result, are those of `rollout`.
    """
    assert sampler.steps
    branch = Branch(seeds, tree, sampler.steps, model.device)
    return rollout(model, prompts, sampler, branch.seed_BL[:, 0].tolist(), hook=branch, **how)


def tree_engine(args: LFPOConfig) -> LocalEngine:
    """The engine `local`, with rollouts that branch; those of an evaluation do not."""
    tree = args.objective.get("tree", [4, 4])

    def run(model: MaskedDiffusionLM, unit: Request, **how: Any) -> Trajectory:
        if unit.generations != math.prod(tree):
            return run_unit(model, unit, **how)
        return tree_rollout(model, unit.prompts, unit.sampler, unit.seeds, tree, **how)

    engine = local_engine(args, run)
    engine.gives = {**GIVES, "tree": "rollouts that branch"}
    return engine
