"""What tests of rollouts compare and count."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM

FIELDS = ("tokens", "reveal_step", "scheduled_steps", "nfe", "queries")


def assert_same_rows(found: Trajectory, expected: Trajectory, rows: list[int], *, but: tuple[str, ...] = ()) -> None:
    """Row i of `found` is row rows[i] of `expected`: integers exactly, the others up to the last bits."""
    for name in set(FIELDS) - set(but):
        assert torch.equal(getattr(found, name), getattr(expected, name)[rows]), name
    for name in ("confidence", "entropy"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name)[rows], msg=name)


def count_forwards(model: MaskedDiffusionLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A list that grows by the shape of each whole forward."""
    shapes: list[tuple[int, ...]] = []
    hidden = model.hidden

    def counting(ids: torch.Tensor, *rest: Any, **how: Any) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return hidden(ids, *rest, **how)

    monkeypatch.setattr(model, "hidden", counting)
    return shapes


def blocks_of_code(section: str) -> list[str]:
    """The Python code in a section of CONTRIBUTING.md."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    body = re.split(r"^## ", text.split(f"\n## {section}\n")[1], flags=re.MULTILINE)[0]
    return re.findall(r"^```python\n(.*?)^```", body, re.DOTALL | re.MULTILINE)
