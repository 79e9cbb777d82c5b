"""Rollouts in blocks: what tests of them count and edit."""

import functools
from typing import Any

import pytest
import torch

from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM
from lfpo.rollout.edits import EditedTrajectory

SEEDS = [11, 12, 13, 14, 15]


def edits_of(t: Trajectory) -> list[list[tuple[int, ...]]]:
    """Each row's edits: position, step, token, and the token that was revealed there."""
    if not isinstance(t, EditedTrajectory):
        return [[]] * len(t)
    revealed = t.revealed.gather(1, t.edit_position)
    columns = torch.stack([t.edit_position, t.edit_step, t.edit_token, revealed], dim=-1).tolist()
    return [[tuple(edit) for edit in row if edit[1] >= 0] for row in columns]


def count_tokens(model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A list that grows by the shape of each forward's input."""
    shapes: list[tuple[int, ...]] = []
    body = model.backbone.model.forward

    def counting(input_ids: torch.Tensor, **rest: Any) -> Any:
        shapes.append(tuple(input_ids.shape))
        return body(input_ids=input_ids, **rest)

    monkeypatch.setattr(model.backbone.model, "forward", counting)
    return shapes


def count_graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by an entry for each graph that is compiled."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: list[torch.Tensor]) -> Any:
        graphs.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")  # which all tests set
    return graphs
