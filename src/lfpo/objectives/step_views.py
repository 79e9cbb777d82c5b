"""States at single steps of the sampler, and views of them for objectives that score what a step wrote."""

import dataclasses
from collections.abc import Sequence

import torch

from lfpo.base import distributed
from lfpo.base.rng import generator
from lfpo.objectives.views import Views, noised, replay
from lfpo.rollout.trajectory import Trajectory

NEVER = torch.iinfo(torch.long).max  # a step after all others


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
    return noised(
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


def shared_by_state(views: Views) -> Views:
    """The views with weights such that the targets of each state number, of all views on all ranks, share a weight of
    1: the weighted sum of losses is then the sum over state numbers of mean losses. A collective."""
    counts = torch.stack([views.state, views.target.sum(-1)], dim=1)
    every = distributed.all_gather_tensor(counts)
    total = torch.bincount(every[:, 0], weights=every[:, 1].double())
    return dataclasses.replace(views, weight=views.target / total[views.state].clamp(min=1).float()[:, None])


def visited_states(trajectory: Trajectory, k: int, seeds: Sequence[int], inner: int) -> Views:
    """States that the sampler really visited, before one step from each of k equal segments of a rollout's distinct
    steps (LFPO, Eq. 11); targets are those of `replay`.

    Where the model attends block by block, steps are drawn for each block of a row that has scored positions. View i
    then shows each block before the i-th of its drawn steps, and blocks for which fewer were drawn without masks.
    """
    step_BW, block_BC = trajectory.scored_steps().cpu(), trajectory.block_BC.cpu()
    block_BW = trajectory.at_writes(trajectory.block_BC).cpu()
    rows, states = [], []
    for row, (step_W, block_W, block_C) in enumerate(zip(step_BW, block_BW, block_BC, strict=True)):
        rng, drawn_C = generator(seeds[row], "timesteps", inner), []
        for block in block_W[step_W >= 0].unique():
            distinct = step_W[(block_W == block) & (step_W >= 0)].unique()
            drawn_C.append((block_C == block, distinct[stratified_indices(len(distinct), k, rng)]))
        count = max(len(steps) for _, steps in drawn_C)
        state = torch.full((count, len(block_C)), NEVER)
        for place_C, steps in drawn_C:
            state[: len(steps), place_C] = steps[:, None]
        rows += [row] * count
        states.append(state)
    device = trajectory.tokens.device
    return replay(trajectory, torch.tensor(rows, device=device), torch.cat(states).to(device))


def stratified_indices(length: int, k: int, rng: torch.Generator) -> torch.Tensor:
    """One index from each of k equal segments of 0 .. length - 1, ascending int64.

    Segment j is floor(j length / k) .. floor((j + 1) length / k) - 1. If length < k, some segments are empty, and the
    result is all `length` indices.
    """
    edges = torch.arange(k + 1) * length // k
    sizes = torch.diff(edges)
    offsets = (torch.rand(k, generator=rng, dtype=torch.float64) * sizes).long()
    return (edges[:-1] + offsets)[sizes > 0]
