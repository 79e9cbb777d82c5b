"""Objectives: one file an algorithm. A new one is a new file and a line in OBJECTIVES
(lfpo.config.objectives), or a dotted path."""

import dataclasses

from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.objectives import OBJECTIVES, knobs_of
from lfpo.config.plugins import resolve
from lfpo.core.objective import Objective


def make_objective(settings: Json) -> Objective:
    """An objective from `{name: ..., knob: value, ...}`; knobs are the fields of its dataclass."""
    name, knobs = knobs_of(settings)
    cls: object = resolve(name, OBJECTIVES, kind="objective")
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise UserError(f"objective {name!r}: {cls!r} is not a dataclass; its fields are its knobs")
    if not issubclass(cls, Objective):  # one of your own gets what it leaves out
        cls = type(cls.__name__, (cls, Objective), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return build(cls, knobs, "objective")


__all__ = ["OBJECTIVES", "make_objective"]
