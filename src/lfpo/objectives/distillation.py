"""Distillation of siblings: what the best continuations of a state reveal becomes the target of its prediction."""

from __future__ import annotations

import torch

from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views


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


def divergence(predictions: Predictions) -> torch.Tensor:
    """The sum over positions of w KL(q || p), a scalar, with p the current policy. The views' second weights are the
    shares, each multiplied by the weight w of its position; siblings must be in one pass."""
    views, share_T = predictions.views, predictions.second_T
    place_T = views.unit[predictions.view_T] * views.labels.shape[1] + predictions.column_T

    def total(key_T: torch.Tensor) -> torch.Tensor:
        """The sum of the shares of all targets with the same key, [T]."""
        _, index_T = key_T.unique(return_inverse=True)
        return torch.zeros_like(share_T).index_add(0, index_T, share_T)[index_T]

    token_T = place_T * (int(views.labels.max()) + 1) + predictions.labels_T
    q_T = total(token_T) / total(place_T).clamp(min=1e-30)
    return (share_T * ((q_T + 1e-8).log() - predictions.logp())).sum()
