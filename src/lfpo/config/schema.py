"""The settings of each command as a JSON schema, by which editors complete and check YAML files (`lfpo schema`).

No key is required: a file may leave one to those it includes, or to the command line.
"""

import dataclasses
import inspect
import math
import typing
from typing import Any

from lfpo.config.build import default_of
from lfpo.config.checks import OneOf, limits, options, type_hints
from lfpo.config.compare import CompareConfig
from lfpo.config.convert import ConvertConfig
from lfpo.config.dpo import DPOConfig
from lfpo.config.errors import UserError, nearest
from lfpo.config.eval import EvalConfig
from lfpo.config.export import ExportConfig, PushConfig
from lfpo.config.help import meanings, plain_default
from lfpo.config.json import Json
from lfpo.config.objectives import OBJECTIVES, OfObjective, knobs_class
from lfpo.config.plan import PlanConfig
from lfpo.config.plugins import DOTTED
from lfpo.config.sample import SampleConfig
from lfpo.config.sft import SFTConfig
from lfpo.config.train import LFPOConfig
from lfpo.config.watch import WatchConfig

Schema = Json

# Command -> the dataclasses whose keys it takes.
CONFIGS: dict[str, tuple[type, ...]] = {
    "train": (LFPOConfig,),
    "sft": (SFTConfig,),
    "dpo": (DPOConfig,),
    "compare": (CompareConfig,),
    "plan": (LFPOConfig, PlanConfig),
    "demo": (LFPOConfig,),
    "sample": (SampleConfig,),
    "eval": (EvalConfig,),
    "watch": (WatchConfig,),
    "export": (ExportConfig,),
    "convert": (ConvertConfig,),
    "push": (PushConfig,),
}
INCLUDE: Schema = {
    "description": "Files or shipped recipes to merge first. A later one overrides an earlier, this file all of them.",
    "type": "array",
    "items": {"type": ["string"]},
}
_TYPES = {int: ["integer"], float: ["number"], bool: ["boolean"], str: ["string", "number"], dict: ["object"]}


def schema(command: str) -> Schema:
    """The JSON schema (draft 7) of a command's settings. Raises UserError for a command that has none."""
    if command not in CONFIGS:
        raise UserError(f"lfpo schema: {command!r} has no settings{nearest(command, CONFIGS)}")
    definitions: Schema = {}
    properties: Schema = {"include": INCLUDE}
    for cls in CONFIGS[command]:
        properties |= _properties(cls, definitions)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"lfpo {command}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "definitions": definitions,
    }


def _properties(cls: type, definitions: Schema) -> Schema:
    """Key -> schema, other names of keys among them."""
    texts, hints = meanings(cls), type_hints(cls, include_extras=True)
    properties: Schema = {}
    for field in dataclasses.fields(cls):
        default = default_of(field)
        properties[field.name] = _with(value_schema(hints[field.name], definitions), texts.get(field.name), default)
    for other, name in getattr(cls, "ALIASES", {}).items():
        properties[other] = {**properties[name], "description": f"The same as {name}."}
    return properties


def _with(schema: Schema, text: str | None, default: object) -> Schema:
    """A key's schema with its description and default."""
    if "$ref" in schema:  # draft 7 ignores what stands beside a reference
        schema = {"allOf": [schema]}
    if text:
        schema = {"description": text, **schema}
    return schema if default is dataclasses.MISSING else {**schema, "default": plain_default(default)}


def value_schema(hint: object, definitions: Schema) -> Schema:
    """The schema of the values that a field of this type takes, as lfpo.config.build reads them. definitions: takes the
    schemas of dataclasses."""
    schemas: list[Schema] = []
    for option in options(hint):
        one = _of_type(option, definitions)
        schemas += one.get("anyOf", [one])
    if type(None) in typing.get_args(hint):
        schemas.append({"type": ["null"]})
    if "enum" in schemas[0] and schemas[1:] == [{"type": ["null"]}]:
        return {"enum": [*schemas[0]["enum"], None]}
    # One `type` with a list of names instead of `anyOf` where it says the same, since editors explain it better.
    if all(set(part) == {"type"} for part in schemas[1:]) and set(schemas[0]) & {"type"}:
        return {**schemas[0], "type": [name for part in schemas for name in part["type"]]}
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _of_type(hint: Any, definitions: Schema) -> Schema:
    """The schema of a type that is no union."""
    marks = getattr(hint, "__metadata__", ())
    for mark in marks:
        if isinstance(mark, OfObjective):
            return _objective(mark, definitions)
        if isinstance(mark, OneOf):
            return _names(mark)
    plain = typing.get_args(hint)[0] if marks else hint
    origin, inner = typing.get_origin(plain), typing.get_args(plain)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is list:  # text is cut at its commas, and another value is a list of one
        items = value_schema(inner[0], definitions)
        others = [name for name in items.get("type", ()) if name != "string"]
        return {"type": ["array", "string", *others], "items": items}
    if origin is dict:
        return {"type": ["object"], "additionalProperties": value_schema(inner[1], definitions)}
    if dataclasses.is_dataclass(plain):
        return _definition(typing.cast(type, plain), definitions)
    return {} if plain is Any else {"type": _TYPES[plain], **_bounds(hint)}


def _bounds(hint: object) -> Schema:
    bounds: Schema = {}
    for limit in limits(hint):
        for end, closed, opened in (
            (limit.least, "minimum", "exclusiveMinimum"),
            (limit.most, "maximum", "exclusiveMaximum"),
        ):
            if math.isfinite(end):
                bounds[opened if end in limit.without else closed] = end
        if between := sorted(limit.without - {limit.least, limit.most}):
            bounds["not"] = {"enum": between}
    return bounds


def _names(mark: OneOf) -> Schema:
    names: Schema = {"enum": list(mark.names)}
    return names if mark.others is None else {"anyOf": [names, {"type": _TYPES[str], "pattern": mark.others}]}


def _definition(cls: type, definitions: Schema) -> Schema:
    """A reference to the schema of a nested dataclass."""
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # so that a class within itself ends here
        definitions[cls.__name__] = {
            "description": inspect.cleandoc(cls.__doc__ or ""),
            "type": ["object"],
            "properties": _properties(cls, definitions),
            "additionalProperties": False,
        }
    return {"$ref": f"#/definitions/{cls.__name__}"}


def _objective(mark: OfObjective, definitions: Schema) -> Schema:
    """{name: ..., knob: ...}: which knobs are taken depends on the name. One of your own takes its own."""
    cases = []
    for name in OBJECTIVES:
        own = {"name": True, **dict.fromkeys(mark.other_keys, True), **_properties(knobs_class(name), definitions)}
        then = {"properties": own, "additionalProperties": False}
        is_named: Schema = {"properties": {"name": {"const": name}}}
        if name != "lfpo":
            is_named["required"] = ["name"]  # without a name it is LFPO
        cases.append({"if": is_named, "then": then})
    named = {"description": "The objective's name or dotted path.", **_names(OneOf(tuple(OBJECTIVES), DOTTED))}
    return {"type": ["object"], "properties": {"name": named}, "allOf": cases}
