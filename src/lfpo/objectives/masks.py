"""Random masks of completions, drawn for each rollout by itself: subsets of drawn sizes, and partly masked blocks; and
the views of given masks."""

from collections.abc import Callable, Sequence

import numpy
import torch
from torch.nn import functional as F

from lfpo.base.rng import generator
from lfpo.objectives.settings import Bounds
from lfpo.objectives.views import Views, noised
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


def blocks_of(trajectory: Trajectory) -> torch.Tensor:
    """The block of each completion position, int64 [B, C]: those that the model attends in, or, where it has full
    attention, those that the sampler fills one after the other."""
    if trajectory.structure.block_length is not None:
        return trajectory.block_BC
    column_C = torch.arange(trajectory.tokens.shape[1], device=trajectory.tokens.device)
    return (column_C // (trajectory.sampler.block_length or len(column_C))).expand_as(trajectory.tokens)


def block_masks(
    knobs: Bounds, trajectory: Trajectory, seeds: Sequence[int], inner: int, purpose: str = "block masks"
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


def _completion_masks(knobs: Bounds, length: int, counted: int, rng: torch.Generator) -> torch.Tensor:
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


def masked_views(
    trajectory: Trajectory,
    masked_MBL: torch.Tensor,
    *,
    weight_MB: torch.Tensor | None = None,
    units: int = 1,
    after_eos: bool = False,
) -> Views:
    """M views a rollout with given positions masked, numbered 0 .. M - 1; views without a target are left out.

    Targets are the masked positions of the completion that are scored; those not scored are masked in every view.

    masked_MBL: may have C columns (completion only) or P + C. weight_MB: of a view's targets (1 unless given).
    units: how many units a rollout's views form: view m belongs to the rollout's unit m mod `units`.
    after_eos: whether tokens after the first EOS are scored.
    """
    n_views, n_rows, width = masked_MBL.shape
    device = masked_MBL.device
    row_S = torch.arange(n_rows, device=device).repeat(n_views)
    state_S = torch.arange(n_views, device=device).repeat_interleave(n_rows)
    scored_SC = trajectory.scored(after_eos)[row_S]
    length = scored_SC.shape[1]
    masked_SL = masked_MBL.flatten(0, 1) | F.pad(~scored_SC, (width - length, 0))
    views = noised(
        trajectory,
        row_S,
        masked_SL,
        masked_SL[:, width - length :] & scored_SC,
        weight_SC=None if weight_MB is None else weight_MB.flatten()[:, None].expand(scored_SC.shape),
        unit_S=row_S * units + state_S % units,
        state_S=state_S,
        after_eos=after_eos,
    )
    return views.select(views.target.any(-1).nonzero().flatten())


def coupled_views(
    trajectory: Trajectory, masked_DBC: torch.Tensor, *, weighted: bool, together: bool, after_eos: bool
) -> Views:
    """Two views for each of D masks of a rollout: the mask, and its complement, which together score every token once.

    Weights are 1/2; `weighted`: (n + 1) / (2 x) with n scored tokens of which the view masks x, which makes the sum
    over a mask's two views an estimate of the ELBO where x is uniform on 0 .. n.

    together: all of a rollout's views form one unit; otherwise each mask and its complement do.
    after_eos: whether tokens after the first EOS are scored.
    """
    scored_BC = trajectory.scored(after_eos)
    masked_MBC = torch.cat([masked_DBC & scored_BC, ~masked_DBC & scored_BC])
    weight_MB = torch.full(masked_MBC.shape[:2], 0.5, device=masked_MBC.device)
    if weighted:
        weight_MB *= (scored_BC.sum(-1) + 1) / masked_MBC.sum(-1).clamp(min=1)
    units = 1 if together else len(masked_DBC)
    return masked_views(trajectory, masked_MBC, weight_MB=weight_MB, units=units, after_eos=after_eos)


def elbo_views(trajectory: Trajectory, masked_DBC: torch.Tensor, *, after_eos: bool) -> Views:
    """A view and a unit for each of D masks of a rollout. A target's weight is n / (x C), with n scored tokens of which
    the mask holds x, and C = gen_length. The weighted sum of log p is then an estimate of the ELBO over C if x is
    uniform on 1 .. n; a view's weights sum to n / C."""
    scored_BC = trajectory.scored(after_eos)
    n_B, x_DB = scored_BC.sum(-1), (masked_DBC & scored_BC).sum(-1)
    weight_DB = n_B / (x_DB.clamp(min=1) * (trajectory.sampler.gen_length or masked_DBC.shape[-1]))
    return masked_views(trajectory, masked_DBC, weight_MB=weight_DB, units=len(masked_DBC), after_eos=after_eos)
