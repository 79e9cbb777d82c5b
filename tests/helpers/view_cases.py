"""Views as objectives ask for them."""

from typing import Any

import torch

from letters import MASK
from lfpo.core.trajectory import Trajectory
from lfpo.core.views import Views


def views_of(objective: Any, t: Trajectory, iteration: int = 0) -> Views:
    """Views of a pass, row r drawing from seed r, every rollout right and better than the others."""
    return objective.views(t, torch.ones(len(t)), range(len(t)), iteration)


def check_rate(hits: torch.Tensor, probability: float) -> None:
    """Every column of independent rows is true with the given probability."""
    hits = hits.double()
    rate = hits.mean(0)
    spread = (probability * (1 - probability) / len(hits)) ** 0.5
    assert bool(((rate - probability).abs() <= 4 * spread).all()), (rate, probability)


def hidden(views: Views, width: int = 0) -> torch.Tensor:
    """Masked positions, of the completion when the prompt's width is given."""
    return views.input_ids[:, width:] == MASK
