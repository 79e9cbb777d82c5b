"""Typed configuration: dataclasses filled from YAML and `--key value`, with errors that name the key.

Nested mappings become nested dataclasses; `--sampler.steps 64` sets a nested key. A field typed `dict` is passed
through unchecked to whoever owns its keys (an objective's knobs).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lfpo.base.errors import UserError, nearest

T = TypeVar("T")


def load_yaml(path: str | Path, including: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML mapping from a file; the name of a recipe shipped with the package works without its folder.

    `include: [a, b]` lays other files or recipes under this one, later ones over earlier ones; a path is looked for
    beside the including file first. including: the files that led here.
    """
    file = _find(Path(path), including[-1].parent if including else Path())
    if file in including:
        raise UserError(f"{including[-1]}: includes itself by way of {' and '.join(p.name for p in including)}")
    try:
        value = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file}: not readable as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected `key: value` lines, found {type(value).__name__}")
    names = value.pop("include", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file}: 'include' must be a list of files or recipes, found {names!r}")
    result: dict[str, Any] = {}
    for name in names:
        result = merge(result, load_yaml(name, (*including, file)))
    return merge(result, value)


def _find(path: Path, beside: Path) -> Path:
    """The file of that name in a folder, or else the shipped recipe of that name."""
    for candidate in (beside / path, RECIPES / f"{path.as_posix().removesuffix('.yaml')}.yaml"):
        if candidate.is_file():
            return candidate.resolve()
    raise UserError(f"config {str(path)!r}: no such file{nearest(path.stem, recipe_names())}")


RECIPES = Path(__file__).parents[1] / "cli" / "recipes"  # data, no code


def recipe_names() -> list[str]:
    return sorted(p.stem for p in RECIPES.glob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """YAML 1.2 floats: `1e-3` is a number (YAML 1.1 reads it as a string)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    __import__("re").compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """`--a.b value` and `--a.b=value` pairs as a nested mapping; a bare `--flag` means true."""
    result: dict[str, Any] = {}
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        if not argument.startswith("--") or argument == "--":
            raise UserError(f"argument {argument!r}: expected --key value")
        name, equals, text = argument[2:].partition("=")
        if not equals:
            follows = i + 1 < len(arguments) and not arguments[i + 1].startswith("--")
            text = arguments[i + 1] if follows else "true"
            i += follows
        try:
            value = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError:
            value = text
        node = result
        *parents, leaf = name.replace("-", "_").split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UserError(f"--{name}: {parent!r} was already given a plain value")
        node[leaf] = value
        i += 1
    return result


def merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """`override` laid over `base`, mappings merged key by key; a mapping that `name`s something else replaces.

    (The knobs of one objective must not become those of another that happens to spell one alike.)
    """
    result = dict(base)
    for name, value in override.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            renamed = "name" in old and value.get("name", old["name"]) != old["name"]
            result[name] = value if renamed else merge(old, value)
        else:
            result[name] = value
    return result


def build(cls: type[T], values: dict[str, Any], where: str = "config", defaults: T | None = None) -> T:
    """An instance of dataclass `cls` from a mapping, every key and type checked.

    defaults: where keys that are left out come from (None: the class's own defaults). A nested dataclass starts from
    the default of the field it stands in, so naming one of its keys leaves the others alone.
    A class may list `ALIASES = {"other_name": "field"}`. Raises UserError naming the key and the nearest valid one.
    """
    aliases: dict[str, str] = getattr(cls, "ALIASES", {})
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for given, value in values.items():
        name = aliases.get(given, given)
        if name not in fields:
            raise UserError(f"{where}: unknown key {given!r}{nearest(given, [*fields, *aliases])}")
        if name in arguments:
            both = " and ".join(repr(key) for key in values if aliases.get(key, key) == name)
            raise UserError(f"{where}: {both} mean the same; give one")
        nested = getattr(defaults, name) if defaults is not None else _default(fields[name])
        if dataclasses.is_dataclass(nested) and not isinstance(nested, type) and isinstance(value, dict):
            arguments[name] = build(type(nested), value, f"{where}: {given}", nested)
        else:
            arguments[name] = _convert(value, hints[name], f"{where}: {given}")
    for name, field in fields.items():
        if name in arguments:
            continue
        if defaults is not None:
            arguments[name] = getattr(defaults, name)
        elif _default(field) is dataclasses.MISSING:
            raise UserError(f"{where}: key {name!r} is missing")
    try:
        return cls(**arguments)
    except ValueError as error:  # raised by __post_init__ of our own dataclasses, already one sentence
        raise UserError(f"{where}: {error}") from error


def _default(field: dataclasses.Field[Any]) -> Any:
    """A field's default value, or MISSING."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` allows, or a UserError."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        errors = []
        for option in options:
            if option is type(None):
                continue
            try:
                return _convert(value, option, where)
            except UserError as error:
                errors.append(error)
        raise errors[0] if len(errors) == 1 else _wrong(value, hint, where)
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise UserError(f"{where}: {value!r} is not valid{nearest(value, typing.get_args(hint))}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return build(hint, value, where)
        raise _wrong(value, hint, where)
    if origin is list:
        if not isinstance(value, list):
            raise _wrong(value, hint, where)
        return [_convert(v, typing.get_args(hint)[0], f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise _wrong(value, hint, where)
        item = typing.get_args(hint)[1] if origin is dict else Any
        return {k: _convert(v, item, f"{where}.{k}") for k, v in value.items()}
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # a folder called 2024 is still a string
    raise _wrong(value, hint, where)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "key: value pairs"}


def _wrong(value: Any, hint: Any, where: str) -> UserError:
    name = _NAMES.get(hint) or getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)
    return UserError(f"{where}: expected {name}, found {value!r}")


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain data, ready for YAML or JSON; `build` reads it back."""
    return dataclasses.asdict(config)


def yaml_text(values: dict[str, Any]) -> str:
    """A mapping as YAML, keys in their own order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
