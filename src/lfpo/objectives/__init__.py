"""Objectives: one file an algorithm. A new one is a new file and a line in OBJECTIVES, or a dotted path."""

from __future__ import annotations

from typing import Any

from ..config import build
from ..errors import UserError
from ..plugins import resolve
from .lfpo import LFPO
from .objective import Objective

OBJECTIVES: dict[str, str] = {
    "lfpo": "lfpo.objectives.lfpo:LFPO",
}


def make_objective(settings: dict[str, Any]) -> Objective:
    """An objective from `{name: ..., knob: value, ...}`; knobs are the fields of its dataclass."""
    if "name" not in settings:
        raise UserError(f"objective: key 'name' is missing; one of {', '.join(OBJECTIVES)} or a dotted path")
    cls = resolve(settings["name"], OBJECTIVES, kind="objective", expected=type)
    return build(cls, {k: v for k, v in settings.items() if k != "name"}, "objective")


__all__ = ["LFPO", "OBJECTIVES", "Objective", "make_objective"]
