"""States at single steps of the sampler, and views of them for objectives that score what a step wrote."""

import dataclasses
from collections.abc import Sequence

import torch

from lfpo.core import rank_tensors
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised


def step_means(trajectory: Trajectory, value_BW: torch.Tensor, after_eos: bool = False) -> list[torch.Tensor]:
    """For each row, the mean value over the tokens that each of its distinct steps wrote to scored positions; on
    the CPU.

    value_BW: one number a written token, in the order of `with_edits`. Each mean is in the dtype of the values, in
    the order of `distinct_steps`.
    """
    value_BW, step_BW = value_BW.cpu(), trajectory.scored_steps(after_eos).cpu()
    means = []
    for value_W, step_W, steps in zip(value_BW, step_BW, trajectory.distinct_steps(after_eos), strict=True):
        index = torch.searchsorted(steps, step_W[step_W >= 0])
        total = torch.zeros(len(steps), dtype=value_W.dtype).index_add(0, index, value_W[step_W >= 0])
        means.append(total / torch.bincount(index, minlength=len(steps)))
    return means


def listed(steps: Sequence[torch.Tensor], trajectory: Trajectory) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps listed for each row, as `step_views` takes them: their rows [S] and themselves [S]."""
    row_S = torch.arange(len(steps)).repeat_interleave(torch.tensor([len(s) for s in steps]))
    return row_S.to(trajectory.tokens.device), torch.cat([*steps]).to(trajectory.tokens.device)


def step_views(
    trajectory: Trajectory,
    row_S: torch.Tensor,
    step_S: torch.Tensor,
    *,
    last_S: torch.Tensor | None = None,
    weight_S: torch.Tensor | None = None,
    after_eos: bool = False,
) -> Views:
    """The states before given steps of given rows, numbered by step; targets are the scored positions that the step
    wrote to, labels the tokens that it wrote there, also where they are edited later.

    last_S: score what the steps from step_S to last_S wrote, with the tokens after the last (step_S unless given).
    weight_S: of a view's targets (1 unless given). after_eos: whether tokens after the first EOS are scored.
    """
    rows, last_S = trajectory.rows(row_S), step_S if last_S is None else last_S
    target = rows.written_by(step_S, last_S) & rows.scored(after_eos)
    weight = None if weight_S is None else weight_S[:, None].expand(target.shape)
    views = noised(
        trajectory,
        row_S,
        rows.masked_before(step_S),
        target,
        shown_SC=rows.tokens_before(step_S),
        label_SC=rows.written_until(last_S),
        weight_SC=weight,
        state_S=step_S,
        after_eos=after_eos,
    )
    visited: Views = rows.as_visited(views, step_S)
    return visited


def shared_by_state(views: Views) -> Views:
    """The views with weights such that the targets of each state number, of all views on all ranks, share a weight of
    1: the weighted sum of losses is then the sum over state numbers of mean losses. A collective."""
    counts = torch.stack([views.state, views.target.sum(-1)], dim=1)
    every = rank_tensors.all_gather_tensor(counts)
    total = torch.bincount(every[:, 0], weights=every[:, 1].double())
    return dataclasses.replace(views, weight=views.target / total[views.state].clamp(min=1).float()[:, None])
