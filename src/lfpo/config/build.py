"""Typed configuration: dataclasses filled from YAML and `--key value`, with errors that name the key.

Nested mappings fill nested dataclasses; `--sampler.steps 64` sets a nested key. The keys of a field typed `dict` are
not checked here (an objective checks its own knobs).
"""

import copy
import dataclasses
import enum
import functools
import os
import re
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lfpo.config.checks import check_ranges, type_hints
from lfpo.config.errors import UserError, nearest
from lfpo.config.files import user_path
from lfpo.config.json import Json

T = TypeVar("T")
RECIPES = Path(__file__).parents[1] / "recipes"  # YAML files, no code
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|\{[A-Za-z_]\w*\})", re.ASCII)
PARTS = ("models", "algorithms", "protocols", "tasks")  # folders of recipes to include, which are no runs by themselves


def recipe_names(*, parts: bool = False) -> list[str]:
    """Names of the shipped recipes for whole runs, such as paper/llada-8b-gsm8k, sorted; with `parts` also those of the
    parts. A whole run may also be named by its last component alone."""
    names = (p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.yaml"))
    return sorted(name for name in names if parts or name.partition("/")[0] not in PARTS)


def command_of(values: Json) -> str:
    """The command that a shipped recipe is for."""
    kinds = {"beta": "dpo", "objectives": "compare", "steps": "sft"}
    return next((kind for key, kind in kinds.items() if key in values), "train")


def load_yaml(path: str | Path, beside: Path = Path()) -> Json:
    """A YAML mapping from a file, relative to the folder `beside`, or from a shipped recipe given by name.

    `include: [a, b]` merges other files or recipes: b overrides a, and this file overrides both. Paths are relative to
    the including file. Raises UserError for a missing or unreadable file.
    """
    file = _find(Path(path), beside)
    try:
        value = copy.deepcopy(_parsed(file.read_text(encoding="utf-8-sig")))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        mark = getattr(error, "problem_mark", None)
        place, problem = ("", error) if mark is None else (f":{mark.line + 1}", error.problem)  # type: ignore[union-attr]
        raise UserError(f"{file}{place}: not readable as YAML ({' '.join(str(problem).split())})") from error
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected `key: value` lines, found {type(value).__name__}")
    names = expanded(value.pop("include", []), f"{file}: include")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file}: 'include' must be a list of files or recipes, found {names!r}")
    result: Json = {}
    for name in names:
        result = merge(result, load_yaml(name, file.parent))
    return merge(result, expanded(value, str(file)))


def expanded(value: Any, where: str) -> Any:
    """A value of a YAML file with $NAME and ${NAME} in its texts replaced by environment variables, as in
    `output_dir: $SCRATCH/run`. Raises UserError, beginning with `where`, for a variable that is not set: a folder of
    that name would be made in its place."""
    if isinstance(value, dict):
        return {key: expanded(part, f"{where}: {key}") for key, part in value.items()}
    if isinstance(value, list):
        return [expanded(part, where) for part in value]
    for name in _VARIABLE.findall(value) if isinstance(value, str) else ():
        if name.strip("{}") not in os.environ:
            raise UserError(f"{where}: {value!r} names the environment variable {name.strip('{}')}, which is not set")
    return os.path.expandvars(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=256)  # many recipes include the same parts
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _find(path: Path, beside: Path) -> Path:
    """The file at `path` relative to the folder `beside`, or else the shipped recipe of that name."""
    name = path.as_posix().removesuffix(".yaml")
    for candidate in map(user_path, (beside / path, RECIPES / f"{name}.yaml")):
        if candidate.is_file():
            return candidate.resolve()
    short = {full.rpartition("/")[2]: full for full in recipe_names()}
    if name in short:
        return (RECIPES / f"{short[name]}.yaml").resolve()
    if (beside / path).is_dir():
        raise UserError(f"config {str(path)!r}: a folder; give a YAML file (a run's: {path / 'config.yaml'})")
    beside_it = [str(path.with_name(file.name)) for file in (beside / path).parent.glob("*.yaml")]
    near = nearest(
        str(path), [*beside_it, *short, *recipe_names(parts=True)], "; `lfpo recipes` lists the shipped ones"
    )
    raise UserError(f"config {str(path)!r}: no such file{near}")


class _Loader(yaml.SafeLoader):
    """Reads `1e-3` as a number; `010`, `1:30` and dates as text. PyYAML follows YAML 1.1, where these are text, 8, 90
    and objects. Refuses a key that a mapping holds twice, of which PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_NUMBERS = {  # with underscores between digits, as in 1_000
    "tag:yaml.org,2002:int": r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$",
    "tag:yaml.org,2002:float": r"^([-+]?(\d[\d_]*\.[\d_]*|\.\d+)([eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in (*_NUMBERS, "tag:yaml.org,2002:timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes text that either of the two readings takes for a number."""


for _tag, _pattern in _NUMBERS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(_pattern), list("-+0123456789."))


def typed(text: str) -> Any:
    """A value as it is typed on a command line, read as YAML; text that is not YAML stays as it is."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def merge(base: Json, override: Json) -> Json:
    """A copy of `base` with the values of `override`; nested mappings are merged key by key.

    Where both hold a mapping with a `name` and the names differ, the override's replaces the base's, so that the knobs
    of one objective are not passed to another. An empty mapping replaces too: `--eval_samplers {}` leaves none.
    """
    result = base | override
    for name, value in override.items():
        old = base.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and value:
            renamed = "name" in old and value.get("name", old["name"]) != old["name"]
            result[name] = value if renamed else merge(old, value)
    return result


def flattened(values: Json, unsplit: Collection[str] = (), prefix: str = "") -> Json:
    """Nested mappings as one with dotted keys. Empty mappings, and those of the keys in `unsplit`, are values."""
    flat: Json = {}
    for key, value in values.items():
        nested = isinstance(value, dict) and value and key not in unsplit
        flat |= flattened(value, unsplit, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def build(cls: type[T], values: Json, where: str = "config", defaults: T | None = None) -> T:
    """An instance of dataclass `cls` from a mapping. Raises UserError, naming the key, for an unknown or missing key
    and a value of another type or range.

    where: prefix of error messages. defaults: an instance that supplies missing keys (None: the class's own defaults);
    for a nested dataclass, the default of its field. `cls` may have
    `ALIASES = {"other_name": "field"}`;
    `REFUSED = {"name": "is ... (why, and what to do)"}`, names of other software that have no counterpart here.
    """
    aliases = getattr(cls, "ALIASES", {})
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = type_hints(cls)
    arguments: Json = {}
    for written, value in values.items():
        name = aliases.get(written, written)
        command = " ".join(where.split()[:2])  # without the file that it was given
        listed = f"; `{command} --help` lists the keys" if where.startswith("lfpo ") and ":" not in where else None
        if problem := refusal(written, getattr(cls, "REFUSED", {}), [*fields, *aliases], listed):
            raise UserError(f"{where}: {problem}")
        if name in arguments:
            both = " and ".join(repr(key) for key in values if aliases.get(key, key) == name)
            raise UserError(f"{where}: {both} mean the same; give one")
        nested = getattr(defaults, name) if defaults is not None else default_of(fields[name])
        if dataclasses.is_dataclass(nested) and not isinstance(nested, type) and isinstance(value, dict):
            arguments[name] = build(type(nested), value, f"{where}: {written}", nested)
        else:
            arguments[name] = read_value(value, hints[name], f"{where}: {written}")
    for name, field in fields.items():
        if defaults is not None:
            arguments.setdefault(name, getattr(defaults, name))
        elif name not in arguments and default_of(field) is dataclasses.MISSING:
            raise UserError(f"{where}: key {name!r} is missing")
    try:
        return cls(**arguments)
    except ValueError as error:  # from our dataclasses' __post_init__, already one sentence
        raise UserError(f"{where}: {error}") from error


def refusal(name: str, refused: Mapping[str, str], known: Collection[str], listed: str | None = None) -> str | None:
    """Why a key is not taken, and what to do; None where it is.

    refused: names with the reason. known: the names that are taken. listed: what says so in place of the list of all.
    """
    if name in known:
        return None
    return f"{name!r} {refused[name]}" if name in refused else f"unknown key {name!r}{nearest(name, known, listed)}"


def checked_new(cls: type[T], *values: object, **keys: object) -> T:
    """A dataclass's `__new__` that says of a name which it does not take what `build` says, in place of a TypeError."""
    names, aliases = [f.name for f in dataclasses.fields(cls) if f.init], getattr(cls, "ALIASES", {})  # type: ignore[arg-type]
    called = {other: f"is called {name!r}" for other, name in aliases.items()}
    for name in keys:
        if problem := refusal(name, getattr(cls, "REFUSED", {}) | called, names):
            raise UserError(f"{cls.__name__}: {problem}")
    return object.__new__(cls)


def check_fields(config: Any) -> None:
    """Convert the fields of a dataclass instance to their types, as `build` does, in place, and check their ranges:
    for classes that users make by their constructors. Raises UserError or ValueError."""
    hints = type_hints(type(config))
    for field in dataclasses.fields(config):
        value = read_value(getattr(config, field.name), hints[field.name], f"{type(config).__name__}: {field.name}")
        object.__setattr__(config, field.name, value)  # frozen classes too
    check_ranges(config)


def default_of(field: dataclasses.Field[object]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def read_value(value: Any, hint: Any, where: str) -> object:
    """`value` converted to the type `hint`. Raises UserError, beginning with `where`, where it does not fit."""
    origin, inner, errors = typing.get_origin(hint), typing.get_args(hint), []
    value = _as_data(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        for option in (option for option in inner if option is not type(None)):
            try:
                return read_value(value, option, where)
            except UserError as error:
                errors.append(error)
        raise errors[0] if len(errors) == 1 else _wrong(value, hint, where)
    if origin is typing.Literal:
        if value not in inner:
            raise UserError(f"{where}: {value!r} is not valid{nearest(value, inner)}")
        return value
    if origin is list:
        return [read_value(v, inner[0], f"{where}[{i}]") for i, v in enumerate(_items(value, hint, where))]
    if isinstance(value, dict) and origin is dict:  # all have text as keys
        return {str(k): read_value(v, inner[1], f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, dict) and dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    if hint is Any:
        return value
    if number and (hint is str or (hint is float and isinstance(value, int))):
        return hint(value)  # as text such as a folder called 2024
    if origin is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise _wrong(value, hint, where)


def _as_data(value: Any) -> Any:
    """A value of a Python program as YAML has it: the text of a path and of torch's dtype, the value of an enum, the
    numbers of arrays and tensors."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # of numpy and torch; a single number is no list
        return value.tolist()
    if type(value).__name__ == "dtype" and str(value).startswith("torch."):  # torch itself is not loaded here
        return str(value).removeprefix("torch.")
    return value


def _items(value: object, hint: object, where: str) -> list[object]:
    """A list's items; of text those between its commas, as a shell may expand brackets; of another value itself."""
    if isinstance(value, Collection) and not isinstance(value, str | dict):
        return list(value)
    if isinstance(value, str):
        read = str if typing.get_args(hint) == (str,) else typed
        return [read(item.strip()) for item in value.split(",")]
    if value is None or isinstance(value, dict | bool):
        raise _wrong(value, hint, where)
    return [value]


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_NAMES |= {dict: "key: value pairs", list: "a list"}


def _wrong(value: object, hint: object, where: str) -> UserError:
    hint = dict if dataclasses.is_dataclass(hint) else typing.get_origin(hint) or hint
    name = _NAMES.get(hint) or getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)
    hint_of_flag = "; a key without a value means True, so give it one" if value is True else ""
    return UserError(f"{where}: expected {name}, found {value!r}{hint_of_flag}")


def to_dict(config: Any) -> Json:
    """A configuration as nested dicts and lists for YAML or JSON; `build` reads it back."""
    return dataclasses.asdict(config)


def yaml_text(values: Json) -> str:
    """A mapping as YAML, with keys in insertion order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flow_text(value: object) -> str:
    """A value as YAML on one line, as it is typed after `--key`."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("...\n").strip()
