"""Objectives: one file an algorithm. A new one is a new file and a line in OBJECTIVES, or a dotted path."""

import dataclasses
import importlib.util
from typing import Any

from lfpo.config import objectives as knobs_by_class
from lfpo.config.build import build, to_dict
from lfpo.config.errors import UserError
from lfpo.config.plugins import dotted, resolve
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
    "mdpo": "lfpo.objectives.mdpo:MDPO",
    "dtm": "lfpo.objectives.dtm:DTM",
    "slim_rl": "lfpo.objectives.slim_rl:SLIMRL",
    "ebpo": "lfpo.objectives.ebpo:EBPO",
    "mask_aware": "lfpo.objectives.mask_aware:MaskAware",
    "rejection": "lfpo.objectives.rejection:Rejection",
}


def make_objective(settings: dict[str, Any]) -> Objective:
    """An objective from `{name: ..., knob: value, ...}`; knobs are the fields of its dataclass."""
    name, knobs = knobs_of(settings)
    cls: Any = resolve(name, OBJECTIVES, kind="objective")
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise UserError(f"objective {name!r}: {cls!r} is not a dataclass; its fields are its knobs")
    if not issubclass(cls, Objective):  # one of your own gets what it leaves out
        cls = type(cls.__name__, (cls, Objective), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return build(cls, knobs, "objective")


def all_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with every knob. Raises the UserError that `make_objective(settings)` would raise for a wrong name,
    key or value, without torch.

    The knobs of an objective outside the package are checked, and get their defaults, when it is made.
    """
    name, knobs = knobs_of(settings)
    module, attribute = dotted(name, OBJECTIVES, kind="objective")
    if hasattr(knobs_by_class, attribute) and name in OBJECTIVES:
        return {"name": name, **to_dict(build(getattr(knobs_by_class, attribute), knobs, "objective"))}
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        resolve(name, OBJECTIVES, kind="objective")  # raises for a module that does not exist
    return settings


def knobs_of(settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The objective's name, and the other settings. Raises UserError where there is no name."""
    if not isinstance(settings.get("name"), str):
        raise UserError(f"objective: key 'name' is missing; give one of {', '.join(OBJECTIVES)} or a dotted path")
    if settings["name"] == "dtree_rpo":
        raise UserError("objective 'dtree_rpo' is an example, not in the package: see examples/objectives/dtree_rpo.py")
    return settings["name"], {k: v for k, v in settings.items() if k != "name"}


__all__ = ["OBJECTIVES", "all_settings", "knobs_of", "make_objective"]
