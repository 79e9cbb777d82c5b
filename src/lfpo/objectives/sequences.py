"""Masks of whole completions, the views of given masks, and sums over the views that form one unit."""

from collections.abc import Sequence

import numpy
import torch
from torch.nn import functional as F

from lfpo.config.peers import BlockMasks
from lfpo.core.objective import Objective
from lfpo.core.rng import generator
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views, noised


def number_of_units(objective: Objective, views: Views) -> float:
    """A normaliser: the number of the views' units, for losses that are means over rollouts, states or masks."""
    return float(len(views.unit.unique()))


class Sequences:
    """The U units of some views, in ascending order, and sums over their T targets.

    unit_S: the unit of each view, counted from 0. row_U: the rollout of each unit. length_U: its scored tokens.
    targets_U: targets of the unit. weight_U: the sum of their weights.
    """

    def __init__(self, views: Views):
        self.views = views
        numbers, self.unit_S = views.unit.unique(return_inverse=True)
        index = torch.arange(len(views), device=numbers.device)
        # The first view of each unit stands for the unit's rollout, which all of its views share.
        first_U = torch.full_like(numbers, len(views)).scatter_reduce(0, self.unit_S, index, "amin")
        self.view_T, self.column_T = views.target.nonzero().unbind(-1)
        self.unit_T = self.unit_S[self.view_T]
        self.weight_T = views.weight[views.target]
        self.row_U, self.length_U = views.row[first_U], views.length[first_U]
        self.targets_U = torch.bincount(self.unit_T, minlength=len(first_U))
        self.weight_U = self.sum(self.weight_T)

    def __len__(self) -> int:
        return len(self.row_U)

    def sum(self, value_T: torch.Tensor) -> torch.Tensor:
        """Sum of the values of each unit's targets, [U]."""
        return value_T.new_zeros(len(self.row_U)).index_add(0, self.unit_T, value_T)

    def weighted(self, value_T: torch.Tensor) -> torch.Tensor:
        """Sum of weight x value over each unit's targets, [U]."""
        return self.sum(self.weight_T.to(value_T.dtype) * value_T)

    def lower_bound(self, logp_T: torch.Tensor) -> torch.Tensor:
        """Mean over views of the mean over targets of log p, [U]: an ELBO a token."""
        per_view = logp_T.new_zeros(len(self.unit_S)).index_add(0, self.view_T, logp_T)
        counts = torch.bincount(self.view_T, minlength=len(self.unit_S)).clamp(min=1)
        return logp_T.new_zeros(len(self)).index_add(0, self.unit_S, per_view / counts) / torch.bincount(self.unit_S)

    def upper_bound(self, logp_T: torch.Tensor, beta: float) -> torch.Tensor:
        """Mean over tokens of log(mean over views of p^beta / t_j) / beta, t_j the share of the view's targets, [U]: an
        EUBO a token (SPG)."""
        counts_S = torch.bincount(self.view_T, minlength=len(self.unit_S))
        ratio_T = (counts_S / self.length_U[self.unit_S])[self.view_T].to(logp_T.dtype)
        views_U = torch.bincount(self.unit_S)
        # log of a sum over views, by its largest term: p^beta of a bad token underflows on its own.
        terms = beta * logp_T - ratio_T.log() - views_U[self.unit_T].to(logp_T.dtype).log()
        width = self.views.labels.shape[1]
        tokens, token_T = (self.unit_T * width + self.column_T).unique(return_inverse=True)
        peak = torch.full_like(tokens, -torch.inf, dtype=logp_T.dtype)
        peak = peak.scatter_reduce(0, token_T, terms.detach(), "amax")
        total = logp_T.new_zeros(len(tokens)).index_add(0, token_T, (terms - peak[token_T]).exp())
        unit_of_token = tokens // width
        summed = logp_T.new_zeros(len(self)).index_add(0, unit_of_token, total.log() + peak)
        return summed / torch.bincount(unit_of_token, minlength=len(self)).clamp(min=1) / beta


def blocks_of(trajectory: Trajectory) -> torch.Tensor:
    """The block of each completion position, int64 [B, C]: those that the model attends in, or, where it has full
    attention, those that the sampler fills one after the other."""
    if trajectory.structure.block_length is not None:
        return trajectory.block_BC
    column_C = torch.arange(trajectory.tokens.shape[1], device=trajectory.tokens.device)
    return (column_C // trajectory.sampler.block_length).expand_as(trajectory.tokens)


def block_masks(
    knobs: BlockMasks, trajectory: Trajectory, seeds: Sequence[int], inner: int, purpose: str = "block masks"
) -> torch.Tensor:
    """num_masks block masks of each rollout's prompt and completion, bool [num_masks, B, P + C].

    Blocks up to the first EOS are drawn, none twice before all were drawn once. In the block, U{1 .. its length} random
    positions are masked; each token before it, of the prompt too, with probability p_mask; all that follow it.

    purpose: key of the draws.
    """
    prompt = trajectory.prompt_mask.bool()
    width, length, count = prompt.shape[1], trajectory.tokens.shape[1], knobs.num_masks
    masked = torch.zeros((count, len(seeds), width + length), dtype=torch.bool)
    for row, (seed, counted) in enumerate(zip(seeds, trajectory.lengths.tolist(), strict=True)):
        rng = generator(seed, purpose, inner)
        block_length = min(knobs.block_length or counted, counted)
        # The blocks of this rollout in random order; where it has fewer than there are masks, the order starts over.
        order = torch.randperm(-(-counted // block_length), generator=rng).tolist()
        for j, completion in enumerate(masked[:, row, width:]):
            start = order[j % len(order)] * block_length
            end = min(start + block_length, counted)
            size = int(torch.randint(1, end - start + 1, (), generator=rng))
            completion[:start] = torch.rand(start, generator=rng) < knobs.p_mask
            completion[start + torch.randperm(end - start, generator=rng)[:size]] = True
            completion[end:] = True
        own = prompt[row].cpu()
        masked[:, row, :width][:, own] = torch.rand((count, int(own.sum())), generator=rng) < knobs.p_mask
    return masked.to(trajectory.tokens.device)


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
    weight_DB = n_B / (x_DB.clamp(min=1) * trajectory.sampler.gen_length)
    return masked_views(trajectory, masked_DBC, weight_MB=weight_DB, units=len(masked_DBC), after_eos=after_eos)
