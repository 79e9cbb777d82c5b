"""Rollouts that branch: the states of a prompt's rollouts at chosen steps become the parents of several (d-TreeRPO).

A tree of branching [b_1, .., b_n] has n levels, edges of equally many scheduled steps. Its root is the prompt, each
node of a level has as many children as the next number says, and its leaves are finished completions: b_1 x .. x b_n
rollouts of a prompt. Rollouts that go through a node are the same up to it, and many forwards are run once for all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from lfpo.base.errors import UserError
from lfpo.models import MaskedDiffusionLM
from lfpo.rollout.denoise import check_prompts, denoise, reveal_schedule, stopped_at_eos
from lfpo.rollout.rows import ActiveRows, finished_trajectory, unstarted
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory


def check_tree(tree: Sequence[int], sampler: SamplerConfig) -> None:
    """Raise UserError where rollouts of a sampler cannot branch as `tree` says. sampler: with its lengths filled in."""
    levels = len(tree)
    own_pace = sampler.rule_name in ("origin", "low_confidence_dynamic")
    if sampler.steps is None or own_pace or sampler.stops_at_confidence:
        raise UserError(
            f"tree {list(tree)} needs a schedule that says how many positions each step reveals, which the reveal rule "
            f"{sampler.rule_name!r} with early_stop {sampler.early_stop!r} does not follow"
        )
    if sampler.steps % levels:
        raise UserError(
            f"tree {list(tree)} has {levels} levels, which do not divide the sampler's {sampler.steps} steps"
        )
    if int(reveal_schedule(sampler).min()) < 1:
        raise UserError(
            f"tree {list(tree)} needs a token revealed at every step, and {sampler.steps} steps for gen_length "
            f"{sampler.gen_length} have some that reveal none; lower sampler.steps"
        )


@torch.no_grad()
def tree_rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: SamplerConfig,
    seeds: Sequence[int],
    tree: Sequence[int],
    *,
    rollout_tokens: int = 16384,
    compiled: bool = False,
) -> Trajectory:
    """Denoise one completion for each of B prompts, which come in runs of prod(tree) equal ones: the leaves of a tree.

    seeds: B integers. The steps up to a node take their noise from the seed of the first leaf below it.
    sampler: with its lengths filled in. The other arguments, and the result, are those of `rollout`; the trajectory's
    `node` says which leaves share what. nfe and queries count a forward once for each leaf that goes through it.
    """
    assert sampler.gen_length and sampler.steps
    if model.block_length:
        raise UserError(
            f"tree {list(tree)} branches at the same steps in all rollouts, which depend on the prompt's length in a "
            "model that attends block by block; leave it out"
        )
    check_prompts(prompts, model, sampler.gen_length)
    per_level = sampler.steps // len(tree)
    rows: ActiveRows | None = None
    for level, n in enumerate(_leaves_below(tree)[1:]):
        own = list(range(0, len(prompts), n))  # a leaf for each node of the level
        start = unstarted([prompts[i] for i in own], [seeds[i] for i in own], sampler, model)
        if rows is not None:
            start = _children(rows, tree[level], start, model, sampler)
        until = None if level == len(tree) - 1 else (level + 1) * per_level
        rows = denoise(
            model,
            start,
            [prompts[i] for i in own],
            sampler,
            until=until,
            rollout_tokens=rollout_tokens,
            compiled=compiled,
        )
    assert rows is not None
    trajectory = finished_trajectory(rows, sampler, model)
    return dataclasses.replace(trajectory, node=nodes(len(prompts), tree).to(trajectory.tokens.device))


def _children(
    parents: ActiveRows, branching: int, fresh: ActiveRows, model: MaskedDiffusionLM, sampler: SamplerConfig
) -> ActiveRows:
    """`branching` copies of each parent, with the numbers and seeds of the rows `fresh`, ready to go on."""
    assert sampler.gen_length and sampler.block_length
    copies = parents.select(parents.row.argsort().repeat_interleave(branching).tolist())
    ended = copies.block * sampler.block_length >= sampler.gen_length
    if sampler.stops_at_eos:
        ended |= stopped_at_eos(model, copies)
    # Keys and values of a cache do not outlast a level.
    return dataclasses.replace(copies, row=fresh.row, seed=fresh.seed, age=fresh.age, done=ended)


def _leaves_below(tree: Sequence[int]) -> list[int]:
    """The number of leaves below a node of each level, the root's first."""
    return [math.prod(tree[level:]) for level in range(len(tree) + 1)]


def nodes(rows: int, tree: Sequence[int]) -> torch.Tensor:
    """`node` of a trajectory of whole trees, int64 [rows, levels + 1]."""
    index = torch.arange(rows)
    return torch.stack([index - index % n for n in _leaves_below(tree)], dim=1)


def node_values(reward_B: torch.Tensor, tree: Sequence[int]) -> torch.Tensor:
    """The values of the nodes that each rollout goes through, from the root to its leaf, [B, levels + 1]: the mean of
    the values of a node's children, of a leaf its reward. reward_B: of whole trees, in order."""
    means = [reward_B.view(-1, n).mean(1, keepdim=True).expand(-1, n).flatten() for n in _leaves_below(tree)]
    return torch.stack(means, dim=1)
