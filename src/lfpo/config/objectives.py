"""Names of objectives, where each is, and the check of `objective: {name: ..., knob: ...}`."""

import importlib.util
from dataclasses import dataclass
from typing import Annotated

from lfpo.config import clipped, lfpo, peers
from lfpo.config.build import build, to_dict
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.plugins import dotted, resolve

OBJECTIVES: dict[str, str] = {
    "lfpo": "lfpo.core.lfpo:LFPO",
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
# The knobs of each, under the name of its class.
_CLASSES = {**vars(peers), **vars(clipped), **vars(lfpo)}
KNOBS: dict[str, type[lfpo.Knobs]] = {name: _CLASSES[path.partition(":")[2]] for name, path in OBJECTIVES.items()}


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
    if name in KNOBS:
        return {"name": name, **to_dict(build(KNOBS[name], knobs, "objective"))}
    module, _ = dotted(name, OBJECTIVES, kind="objective")
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        resolve(name, OBJECTIVES, kind="objective")  # raises for a module that does not exist
    return settings


def knobs_of(settings: Json) -> tuple[str, Json]:
    """The objective's name, and the other settings. Raises UserError where there is no name."""
    if not isinstance(settings.get("name"), str):
        raise UserError(f"objective: key 'name' is missing; give one of {', '.join(OBJECTIVES)} or a dotted path")
    if settings["name"] == "dtree_rpo":
        raise UserError("objective 'dtree_rpo' is an example, not in the package: see examples/objectives/dtree_rpo.py")
    return settings["name"], {k: v for k, v in settings.items() if k != "name"}
