"""Sums over whole completions: what sequence-level losses take of the views that form one unit."""

import torch

from lfpo.objectives.views import Views


class Sequences:
    """The U units of some views, in ascending order, and sums over their T targets.

    unit_S: the unit of each view, counted from 0. row_U: the rollout of each unit. length_U: its scored tokens.
    targets_U: targets of the unit. weight_U: the sum of their weights.
    """

    def __init__(self, views: Views):
        self.views = views
        numbers, self.unit_S = views.unit.unique(return_inverse=True)
        index = torch.arange(len(views), device=numbers.device)
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
