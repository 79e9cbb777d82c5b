"""Names of objectives, where each is, and the check of `objective: {name: ..., knob: ...}`."""

import importlib
from dataclasses import dataclass
from typing import Annotated

from lfpo.config import clipped, lfpo, peers
from lfpo.config.build import build, to_dict
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.plugins import dotted

OBJECTIVES: dict[str, str] = {
    "lfpo": "lfpo.core.lfpo:LFPO",
    "diffu_grpo": "lfpo.objectives.diffu_grpo:DiffuGRPO",
    "unigrpo": "lfpo.objectives.unigrpo:UniGRPO",
    "coupled_grpo": "lfpo.objectives.coupled_grpo:CoupledGRPO",
    "spg": "lfpo.objectives.spg:SPG",
    "agrpo": "lfpo.objectives.agrpo:AGRPO",
    "wd1": "lfpo.contrib.wd1:WD1",
    "trace_rl": "lfpo.objectives.trace_rl:TraceRL",
    "espo": "lfpo.objectives.espo:ESPO",
    "gdsd": "lfpo.contrib.gdsd:GDSD",
    "rldf": "lfpo.contrib.rldf:RLDF",
    "justgrpo": "lfpo.objectives.justgrpo:JustGRPO",
    "bgpo": "lfpo.contrib.bgpo:BGPO",
    "cj_grpo": "lfpo.contrib.cj_grpo:CJGRPO",
    "gdpo": "lfpo.contrib.gdpo:GDPO",
    "egspo": "lfpo.contrib.egspo:EGSPO",
    "stable_drl": "lfpo.contrib.stable_drl:StableDRL",
    "mdpo": "lfpo.contrib.mdpo:MDPO",
    "dtm": "lfpo.objectives.dtm:DTM",
    "slim_rl": "lfpo.objectives.slim_rl:SLIMRL",
    "ebpo": "lfpo.objectives.ebpo:EBPO",
    "mask_aware": "lfpo.objectives.mask_aware:MaskAware",
    "rejection": "lfpo.objectives.rejection:Rejection",
}
# Where the knobs of a package's objectives are, under the names of their classes.
CONTRIB, CONTRIB_KNOBS = "lfpo.contrib.", "lfpo.contrib.knobs"
_KNOBS = {**vars(peers), **vars(clipped), **vars(lfpo)}


def knobs_class(name: str) -> type[lfpo.Knobs]:
    """The class of the knobs of an objective of the package, without its torch code."""
    module, _, cls = OBJECTIVES[name].partition(":")
    # Loaded by name: no package imports contrib.
    classes = vars(importlib.import_module(CONTRIB_KNOBS)) if module.startswith(CONTRIB) else _KNOBS
    found: type[lfpo.Knobs] = classes[cls]
    return found


@dataclass(frozen=True)
class OfObjective:
    """Marks key: value pairs that are an objective's name and knobs. other_keys: keys that they may hold beside
    these."""

    other_keys: tuple[str, ...] = ()


ObjectiveSettings = Annotated[Json, OfObjective()]


def all_settings(settings: Json) -> Json:
    """The settings with every knob. Raises UserError for a wrong name, key or value.

    The knobs of an objective outside the package are checked, and get their defaults, when it is made.
    """
    name, knobs = knobs_of(settings)
    if name in OBJECTIVES:
        return {"name": name, **to_dict(build(knobs_class(name), knobs, "objective"))}
    dotted(name, OBJECTIVES, kind="objective")
    return settings


def knobs_of(settings: Json) -> tuple[str, Json]:
    """The objective's name, and the other settings. Raises UserError where there is no name."""
    if not isinstance(settings.get("name"), str):
        raise UserError(f"objective: key 'name' is missing; give one of {', '.join(OBJECTIVES)} or a dotted path")
    return settings["name"], {k: v for k, v in settings.items() if k != "name"}
