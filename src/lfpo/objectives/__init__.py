"""Objectives: one file an algorithm. A new one is a new file and a line in OBJECTIVES, or a dotted path."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from lfpo.base.config import build
from lfpo.base.errors import UserError
from lfpo.base.plugins import resolve

if TYPE_CHECKING:  # names and settings are checked before torch is loaded
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
    "dtree_rpo": "lfpo.objectives.dtree_rpo:DTreeRPO",
    "mdpo": "lfpo.objectives.mdpo:MDPO",
    "dtm": "lfpo.objectives.dtm:DTM",
    "rejection": "lfpo.objectives.rejection:Rejection",
}


def make_objective(settings: dict[str, Any]) -> Objective:
    """An objective from `{name: ..., knob: value, ...}`; knobs are the fields of its dataclass."""
    name, knobs = knobs_of(settings)
    cls = resolve(name, OBJECTIVES, kind="objective", expected=type)
    if not dataclasses.is_dataclass(cls):
        raise UserError(f"objective {name!r}: {cls.__name__} is not a dataclass; its fields are its knobs")
    return build(cast(Any, cls), knobs, "objective")


def knobs_of(settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The objective's name, and the other settings. Raises UserError where there is no name."""
    if not isinstance(settings.get("name"), str):
        raise UserError(f"objective: key 'name' is missing; give one of {', '.join(OBJECTIVES)} or a dotted path")
    return settings["name"], {k: v for k, v in settings.items() if k != "name"}


__all__ = ["OBJECTIVES", "knobs_of", "make_objective"]
