"""SPG, Sandwiched Policy Gradient (arXiv 2510.09541): a lower bound for good rollouts, an upper one for bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from lfpo.base.checks import at_least_one, in_unit_interval
from lfpo.base.rng import generator
from lfpo.objectives.advantages import Advantage, group_advantages
from lfpo.objectives.measures import Measures, measure_targets
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, noised
from lfpo.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class SPG:
    """Policy gradient whose log-likelihood is an evidence lower bound (ELBO) where the advantage is positive and, where
    it is not, an upper bound (EUBO), a mixture of both, or the lower bound again.

    bound: what rollouts with a negative advantage get; "none" leaves them out.
    beta: exponent of the upper bound (Renyi order; it must be at least 1). mix: weight of the EUBO in "mix".
    num_masks: m, views a rollout. block_length: block-wise masking: one block partly masked, the earlier ones clean,
        the later ones masked (None: the whole completion is one block). p_mask: chance of masking each token of the
        prompt and of the earlier blocks.
    num_iterations: passes through each batch, with new masks. There is no ratio, no clipping and no KL, as published.

    As in the public code, and unlike its description, the wholly masked later blocks and the tokens that p_mask hides
    enter the bounds too. Unlike there, no block is drawn a second time before all were drawn.
    """

    bound: Literal["mix", "eubo", "elbo", "none"] = "mix"
    beta: float = 1.5
    mix: float = 0.5
    num_masks: int = 2
    block_length: int | None = 32
    p_mask: float = 0.15
    num_iterations: int = 4
    advantage: Advantage = "mean"
    needs_base: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least_one(self, "beta", "num_masks", "num_iterations")
        in_unit_interval(self, "mix", "p_mask")
        if self.block_length is not None:
            at_least_one(self, "block_length")

    def signal(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
        return group_advantages(rewards_B, group_B, self.advantage)

    def views(self, trajectory: Trajectory, signal_B: torch.Tensor, seeds: Sequence[int], inner: int) -> Views:
        prompt = trajectory.prompt_mask.bool()
        width, length = prompt.shape[1], trajectory.tokens.shape[1]
        masked = torch.zeros((self.num_masks, len(seeds), width + length), dtype=torch.bool)
        for row, (seed, counted) in enumerate(zip(seeds, trajectory.lengths.tolist(), strict=True)):
            rng = generator(seed, "block masks", inner)
            masked[:, row, width:] = self.completion_masks(length, counted, rng)
            own = prompt[row].cpu()
            hidden = torch.rand((self.num_masks, int(own.sum())), generator=rng) < self.p_mask
            masked[:, row, :width][:, own] = hidden
        return self.masked_views(trajectory, masked.to(trajectory.tokens.device))

    def completion_masks(self, length: int, counted: int, rng: torch.Generator) -> torch.Tensor:
        """Block masks [num_masks, length] of a completion whose first `counted` tokens matter; the rest is masked.

        Blocks up to the first EOS are drawn, none twice before all were drawn once. In the block, U{1 .. its length}
        random positions are masked; before it, each with probability p_mask.
        """
        block_length = min(self.block_length or counted, counted)
        n_blocks = -(-counted // block_length)
        order = torch.randperm(n_blocks, generator=rng).tolist()
        masks = torch.ones((self.num_masks, length), dtype=torch.bool)
        for j in range(self.num_masks):
            start = order[j % n_blocks] * block_length
            end = min(start + block_length, counted)
            size = int(torch.randint(1, end - start + 1, (), generator=rng))
            masks[j, :start] = torch.rand(start, generator=rng) < self.p_mask
            masks[j, start:end] = False
            masks[j, start + torch.randperm(end - start, generator=rng)[:size]] = True
        return masks

    def masked_views(self, trajectory: Trajectory, masked_MBL: torch.Tensor) -> Views:
        """num_masks views a rollout, kept together; targets are the masked positions up to the first EOS."""
        rows = torch.arange(len(trajectory), device=masked_MBL.device).repeat(len(masked_MBL))
        masked = masked_MBL.flatten(0, 1)
        target = masked[:, -trajectory.tokens.shape[1] :] & trajectory.counted[rows]
        return noised(trajectory, rows, masked, target, unit_S=rows)

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        views = predictions.views
        unit_S, first_U = views.units()
        unit_T = unit_S[predictions.view_T]
        advantage_U = signal_B.to(views.weight.device)[views.row[first_U]]
        lengths_U = views.length[first_U]
        logp = predictions.logp()
        lower = self._elbo(logp, predictions, unit_S, len(first_U))
        if self.bound == "elbo":
            bound = lower
        elif self.bound == "none":
            bound = torch.zeros_like(lower)
        else:
            share = 1.0 if self.bound == "eubo" else self.mix
            upper = self._eubo(logp, predictions, unit_S, unit_T, lengths_U)
            bound = share * upper + (1 - share) * lower
        estimate = torch.where(advantage_U > 0, lower, bound)
        loss = -(advantage_U * estimate * lengths_U).sum()
        return loss, measure_targets(predictions, predictions.at_targets(signal_B))

    def _elbo(self, logp: torch.Tensor, predictions: Predictions, unit_S: torch.Tensor, n_units: int) -> torch.Tensor:
        """mean over views of the mean over targets of log p, [U]."""
        per_view = logp.new_zeros(len(unit_S)).index_add(0, predictions.view_T, logp)
        counts = torch.bincount(predictions.view_T, minlength=len(unit_S)).clamp(min=1)
        means = per_view / counts
        return logp.new_zeros(n_units).index_add(0, unit_S, means) / torch.bincount(unit_S)

    def _eubo(
        self,
        logp: torch.Tensor,
        predictions: Predictions,
        unit_S: torch.Tensor,
        unit_T: torch.Tensor,
        lengths_U: torch.Tensor,
    ) -> torch.Tensor:
        """mean over tokens of log(mean over views of p^beta / t_j) / beta, t_j the share of the view's targets, [U]."""
        counts_S = torch.bincount(predictions.view_T, minlength=len(unit_S))
        ratio_T = (counts_S / lengths_U[unit_S])[predictions.view_T].to(logp.dtype)
        views_U = torch.bincount(unit_S)
        # log of a sum over views, by its largest term: p^beta of a bad token underflows on its own.
        terms = self.beta * logp - ratio_T.log() - views_U[unit_T].to(logp.dtype).log()
        key = unit_T * predictions.views.labels.shape[1] + predictions.column_T
        tokens, token_T = key.unique(return_inverse=True)
        peak = torch.full_like(tokens, -torch.inf, dtype=logp.dtype)
        peak = peak.scatter_reduce(0, token_T, terms.detach(), "amax")
        total = logp.new_zeros(len(tokens)).index_add(0, token_T, (terms - peak[token_T]).exp())
        log_mean = total.log() + peak
        unit_of_token = tokens // predictions.views.labels.shape[1]
        summed = logp.new_zeros(len(views_U)).index_add(0, unit_of_token, log_mean)
        return summed / torch.bincount(unit_of_token, minlength=len(views_U)).clamp(min=1) / self.beta

    def normalizer(self, views: Views) -> float:
        """Summed lengths of the rollouts."""
        _, first_U = views.units()
        return float(views.length[first_U].sum())
