"""Objectives: one file an algorithm. A new one is a new file and a line in OBJECTIVES, or a dotted path."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from lfpo.base.config import build
from lfpo.base.errors import UserError
from lfpo.base.plugins import resolve
from lfpo.objectives.lfpo import LFPO
from lfpo.objectives.objective import Objective

OBJECTIVES: dict[str, str] = {
    "lfpo": "lfpo.objectives.lfpo:LFPO",
    "diffu_grpo": "lfpo.objectives.diffu_grpo:DiffuGRPO",
    "unigrpo": "lfpo.objectives.unigrpo:UniGRPO",
    "coupled_grpo": "lfpo.objectives.coupled_grpo:CoupledGRPO",
    "spg": "lfpo.objectives.spg:SPG",
    "agrpo": "lfpo.objectives.agrpo:AGRPO",
    "wd1": "lfpo.objectives.wd1:WD1",
    "trace_rl": "lfpo.objectives.trace_rl:TraceRL",
    "espo": "lfpo.objectives.espo:ESPO",
    "gdsd": "lfpo.objectives.gdsd:GDSD",
    "rldf": "lfpo.objectives.rldf:RLDF",
    "justgrpo": "lfpo.objectives.justgrpo:JustGRPO",
    "bgpo": "lfpo.objectives.bgpo:BGPO",
    "cj_grpo": "lfpo.objectives.cj_grpo:CJGRPO",
    "gdpo": "lfpo.objectives.gdpo:GDPO",
    "egspo": "lfpo.objectives.egspo:EGSPO",
    "stable_drl": "lfpo.objectives.stable_drl:StableDRL",
    "rejection": "lfpo.objectives.rejection:Rejection",
}


def make_objective(settings: dict[str, Any]) -> Objective:
    """An objective from `{name: ..., knob: value, ...}`; knobs are the fields of its dataclass."""
    if not isinstance(settings.get("name"), str):
        raise UserError(f"objective: key 'name' is missing; give one of {', '.join(OBJECTIVES)} or a dotted path")
    cls = resolve(settings["name"], OBJECTIVES, kind="objective", expected=type)
    if not dataclasses.is_dataclass(cls):
        raise UserError(f"objective {settings['name']!r}: {cls.__name__} is not a dataclass; its fields are its knobs")
    return build(cast(Any, cls), {k: v for k, v in settings.items() if k != "name"}, "objective")


__all__ = ["LFPO", "OBJECTIVES", "Objective", "make_objective"]
