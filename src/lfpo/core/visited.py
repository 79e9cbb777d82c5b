"""Views of states that the sampler really visited: the consistency term of the paper (LFPO, Eq. 11)."""

from collections.abc import Sequence

import torch

from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised

NEVER = torch.iinfo(torch.long).max  # a step after all others


def replay(trajectory: Trajectory, row_S: torch.Tensor, step_S: torch.Tensor) -> Views:
    """The states before given steps of given rows; targets are the still-masked positions up to the first EOS, and
    those that are edited at the step or later.

    step_S: one a view, or [S, C], one a position.
    Every intermediate state is asked for the final solution: the paper's consistency term. So the labels are the final
    tokens, also where the sampler first revealed another token.
    """
    rows = trajectory.rows(row_S)
    target = rows.pending_before(step_S) & rows.until_eos
    shown = rows.tokens_before(step_S)
    views = noised(trajectory, row_S, rows.masked_before(step_S), target, shown_SC=shown)
    visited: Views = rows.as_visited(views, step_S)
    return visited


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
