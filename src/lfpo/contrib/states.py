"""Views whose advantages and second weights differ from state to state of a rollout: a kind of view for objectives that
compare states, not rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lfpo.core.predictions import Predictions
from lfpo.core.views import Views


@dataclass
class StateViews(Views):
    """advantage [S] float64: of each view. second [S, L]: for losses of two terms, a second weight of the targets, 0
    elsewhere."""

    advantage: torch.Tensor = field(kw_only=True)
    second: torch.Tensor = field(kw_only=True)


def with_states(views: Views, advantage_S: torch.Tensor, second_SL: torch.Tensor) -> StateViews:
    """The views with an advantage each, and second weights of their targets."""
    return StateViews(**vars(views), advantage=advantage_S, second=second_SL)


def of_states(predictions: Predictions) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantage and the second weight of each target, both [T]; 0 in dummy views, which ranks without rows run."""
    views = predictions.views
    if not isinstance(views, StateViews):
        neither = torch.zeros_like(predictions.weight_T)
        return neither, neither
    return views.advantage[predictions.view_T], views.second[views.target]
