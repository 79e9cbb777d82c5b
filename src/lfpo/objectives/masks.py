"""Random masks of completions, drawn for each rollout by itself: subsets of drawn sizes, and partly masked blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy
import torch

from lfpo.base.rng import generator
from lfpo.rollout.trajectory import Trajectory


def stratified_sizes(least: int, most: int, count: int, rng: torch.Generator) -> torch.Tensor:
    """`count` sizes in least .. most, int64: the first is uniform, the others follow it at equal cyclic distances.

    So each is uniform, and together they cover the range evenly.
    """
    values = most - least + 1
    first = torch.randint(values, (), generator=rng)
    return (first + torch.arange(count) * values // count) % values + least


def stratified_masks(
    scored_BC: torch.Tensor, seeds: Sequence[int], inner: int, *, count: int, least: int
) -> torch.Tensor:
    """`count` random subsets of each rollout's scored positions, bool [count, B, C], of `stratified_sizes` from `least`
    to all."""
    return subset_masks(scored_BC, seeds, inner, lambda n, rng: stratified_sizes(least, n, count, rng))


def subset_masks(
    scored_BC: torch.Tensor,
    seeds: Sequence[int],
    inner: int,
    sizes: Callable[[int, torch.Generator], torch.Tensor],
) -> torch.Tensor:
    """M random subsets of each rollout's scored positions, bool [M, B, C].

    sizes(n, rng): how many of a rollout's n scored positions each of its subsets holds, int64 [M].
    """
    masks = []
    for scored_C, seed in zip(scored_BC.cpu(), seeds, strict=True):
        rng = generator(seed, "subsets", inner)
        place = scored_C.nonzero().flatten()
        size_M = sizes(len(place), rng)
        order = torch.stack([torch.randperm(len(place), generator=rng) for _ in size_M])
        mask_MC = torch.zeros((len(size_M), len(scored_C)), dtype=torch.bool)
        mask_MC[:, place] = order < size_M[:, None]
        masks.append(mask_MC)
    return torch.stack(masks, dim=1).to(scored_BC.device)


class Blocks(Protocol):
    """Knobs of block masks. block_length: None takes the whole completion up to its first EOS as one block."""

    @property
    def num_masks(self) -> int: ...

    @property
    def block_length(self) -> int | None: ...

    @property
    def p_mask(self) -> float: ...


def block_masks(
    knobs: Blocks, trajectory: Trajectory, seeds: Sequence[int], inner: int, purpose: str = "block masks"
) -> torch.Tensor:
    """num_masks block masks of each rollout's prompt and completion, bool [num_masks, B, P + C].

    Blocks up to the first EOS are drawn, none twice before all were drawn once. In the block, U{1 .. its length} random
    positions are masked; each token before it, of the prompt too, with probability p_mask; all that follow it.

    purpose: key of the draws.
    """
    prompt = trajectory.prompt_mask.bool()
    width, length = prompt.shape[1], trajectory.tokens.shape[1]
    masked = torch.zeros((knobs.num_masks, len(seeds), width + length), dtype=torch.bool)
    for row, (seed, counted) in enumerate(zip(seeds, trajectory.lengths.tolist(), strict=True)):
        rng = generator(seed, purpose, inner)
        masked[:, row, width:] = _completion_masks(knobs, length, counted, rng)
        own = prompt[row].cpu()
        hidden = torch.rand((knobs.num_masks, int(own.sum())), generator=rng) < knobs.p_mask
        masked[:, row, :width][:, own] = hidden
    return masked.to(trajectory.tokens.device)


def _completion_masks(knobs: Blocks, length: int, counted: int, rng: torch.Generator) -> torch.Tensor:
    """Block masks [num_masks, length] of a completion whose first `counted` tokens matter."""
    block_length = min(knobs.block_length or counted, counted)
    n_blocks = -(-counted // block_length)
    order = torch.randperm(n_blocks, generator=rng).tolist()
    masks = torch.ones((knobs.num_masks, length), dtype=torch.bool)
    for j in range(knobs.num_masks):
        start = order[j % n_blocks] * block_length
        end = min(start + block_length, counted)
        size = int(torch.randint(1, end - start + 1, (), generator=rng))
        masks[j, :start] = torch.rand(start, generator=rng) < knobs.p_mask
        masks[j, start:end] = False
        masks[j, start + torch.randperm(end - start, generator=rng)[:size]] = True
    return masks


def gauss_legendre(nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes, ascending, and weights of the Gauss-Legendre rule on (0, 1), float64. The middle of an odd number of nodes
    is exactly 1/2."""
    values, weights = numpy.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy(values + 1) / 2, torch.from_numpy(weights) / 2
