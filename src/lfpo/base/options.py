"""A command's options: its dataclass, filled from [CONFIG] --key value ..., and its help text."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from lfpo.base.config import build, load_yaml, merge, parse_overrides
from lfpo.base.errors import UserError


def configure(cls: type, rest: list[str], *, takes_file: bool, command: str) -> tuple[Any, bool]:
    """A command's configuration from [CONFIG] --key value ..., and whether --resume was given."""
    if {"-h", "--help"} & set(rest):
        print(describe(cls, command, takes_file))
        raise SystemExit(0)
    values: dict[str, Any] = {}
    if takes_file and rest and not rest[0].startswith("--"):
        values, rest = load_yaml(rest[0]), rest[1:]
    overrides = parse_overrides(rest)
    resume = overrides.pop("resume", False)
    if not isinstance(resume, bool):
        raise UserError(f"--resume takes no value, found {resume!r}")
    return build(cls, merge(values, overrides), f"lfpo {command}"), resume


def describe(cls: type, command: str, takes_file: bool) -> str:
    """The help of a command: its dataclass's docstring and a line a key."""
    lines = [f"usage: lfpo {command} {'[CONFIG] ' if takes_file else ''}[--key value ...]", ""]
    lines += [inspect.cleandoc(cls.__doc__ or ""), "", "keys and defaults:"]
    for f in dataclasses.fields(cls):
        default: Any = f.default
        if default is dataclasses.MISSING:
            factory: Any = f.default_factory
            default = "(required)" if factory is dataclasses.MISSING else factory()
        if dataclasses.is_dataclass(default):
            lines += [f"  --{f.name}.{g.name} {getattr(default, g.name)}" for g in dataclasses.fields(default)]
        else:
            lines.append(f"  --{f.name} {_short(default)}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    """A default for the help text: of nested settings only what differs from their own defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = type(value)()
        changed = {k: v for k, v in dataclasses.asdict(value).items() if v != getattr(plain, k)}
        return _short(changed)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)
