"""What keys mean: the strings below the fields of settings, which `--help` and the JSON schema print."""

import ast
import dataclasses
import functools
import inspect
import itertools
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator

from lfpo.config.build import default_of
from lfpo.config.checks import limits, options, type_hints


def meanings(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, on one line, also of the fields that it inherits. A field that is
    declared again without a string keeps its meaning."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):  # without `object`
        texts |= _written(base.__module__).get(base.__qualname__, {})
    return texts


@functools.cache
def _written(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the string below it, read from a module's source, as Python does not keep such strings."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {c.name: dict(_strings(c)) for c in tree.body if isinstance(c, ast.ClassDef)}


def _strings(cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for node, below in itertools.pairwise(cls.body):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def describe(cls: type, command: str, takes_file: bool, flags: tuple[str, ...] = ()) -> str:
    """The help of a command: the docstring of its dataclass, then each key with its default and what it means."""
    switches = "".join(f" [--{name}]" for name in flags)
    lines = [f"usage: lfpo {command} {'[CONFIG] ' if takes_file else ''}[--key value ...]{switches}", ""]
    lines += [inspect.cleandoc(cls.__doc__ or ""), "", "keys, their defaults and what they mean:"]
    return "\n".join([*lines, *_keys(cls, width=min(shutil.get_terminal_size().columns, 120))])


def _keys(cls: type, width: int, prefix: str = "", defaults: object = None) -> Iterator[str]:
    """The lines of the keys of a dataclass. defaults: an instance whose values are the defaults."""
    texts, hints = meanings(cls), type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        name, default = prefix + field.name, getattr(defaults, field.name, default_of(field))
        nested = settings_of(hints[field.name])
        shown = "(required)" if default is dataclasses.MISSING else _short(default)
        if nested and default is not None:
            shown = "{...}"  # each of its keys follows
        yield f"  --{name} {shown}"
        sentences = " ".join(filter(None, (texts.get(field.name), values_of(hints[field.name]))))
        yield from textwrap.wrap(sentences, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
        if nested:
            yield from _keys(nested, width, f"{name}.", default)


def settings_of(hint: object) -> type | None:
    """The dataclass that a field holds, or None: of `LoraSettings | None`, LoraSettings."""
    return next(
        (option for option in options(hint) if isinstance(option, type) and dataclasses.is_dataclass(option)), None
    )


def values_of(hint: object) -> str:
    """A sentence about the values that a type takes, where it names a range or a few words; or nothing."""
    for option in options(hint):
        option = typing.get_args(option)[0] if typing.get_origin(option) is list else option
        if typing.get_origin(option) is typing.Literal:
            return f"One of {', '.join(map(str, typing.get_args(option)))}."
    return " ".join(f"Must {limit.must}." for limit in limits(hint))


def plain_default(value: object) -> object:
    """A default value as JSON; of nested settings the keys that differ from their own defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = dataclasses.asdict(type(value)())
        return {key: part for key, part in dataclasses.asdict(value).items() if part != own[key]}
    return {key: plain_default(part) for key, part in value.items()} if isinstance(value, dict) else value


def _short(value: object) -> str:
    """A default value for the help text."""
    value = plain_default(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)
