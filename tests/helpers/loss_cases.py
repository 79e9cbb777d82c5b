"""Small losses whose values are computed by hand."""

from math import log
from typing import Any

import pytest
import torch

from letters import Table
from lfpo.core.learner import accumulate_gradients
from lfpo.core.objective import Objective
from lfpo.core.views import Views

GOOD_BAD = torch.tensor([1.0, -0.5], dtype=torch.float64)  # the advantages of most tests below


def loss_of(objective: Objective, views: Views, signal: Any, **tables: dict[str, str]) -> float:
    """The loss of one optimiser step under table policies, which splitting into passes must not change."""
    models: Any = {name: Table(odds) for name, odds in tables.items()}
    whole = accumulate_gradients(objective, models, views, signal, update_tokens=10**6)[0]
    assert accumulate_gradients(objective, models, views, signal, update_tokens=1)[0] == pytest.approx(whole, rel=1e-12)
    return whole


LN2 = log(2)
HALF = 0.5 + LN2 - 1  # k3 where the other policy gives a token half the probability


def masks(*states: list[str]) -> torch.Tensor:
    """States written as text, one list a mask with a state for each rollout, as positions [D, B, C]."""
    return torch.tensor([[[x == "_" for x in state] for state in row] for row in states])
