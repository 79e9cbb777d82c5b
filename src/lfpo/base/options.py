"""Fills a command's dataclass from its arguments, [CONFIG] --key value ..., and prints its help."""

import dataclasses
import inspect
from typing import Any

from lfpo.base.config import build, load_config, merge, parse_overrides, text_keys
from lfpo.base.errors import UserError


def configure(
    cls: type, rest: list[str], *, takes_file: bool, command: str, flags: tuple[str, ...] = ()
) -> tuple[Any, set[str]]:
    """A command's configuration from `rest`, its arguments, and those of its flags that were given.

    takes_file: whether the first argument may be a configuration file or recipe. command: the name in messages.
    flags: names of switches that are no keys of the configuration, such as "resume" for --resume.
    Prints the help and exits for -h and --help. Raises UserError for a wrong key or value.
    """
    if {"-h", "--help"} & set(rest):
        print(describe(cls, command, takes_file, flags))
        raise SystemExit(0)
    values: dict[str, Any] = {}
    if takes_file and rest and not rest[0].startswith("--"):
        values, rest = load_config(rest[0], command), rest[1:]
    overrides = parse_overrides(rest, text_keys(cls))
    given = {name: overrides.pop(name) for name in flags if name in overrides}
    for name, value in given.items():
        if not isinstance(value, bool):
            raise UserError(f"--{name} takes no value, found {value!r}")
    return build(cls, merge(values, overrides), f"lfpo {command}"), {name for name, value in given.items() if value}


def describe(cls: type, command: str, takes_file: bool, flags: tuple[str, ...] = ()) -> str:
    """The help of a command: the docstring of its dataclass, then one line for each key."""
    switches = "".join(f" [--{name}]" for name in flags)
    lines = [f"usage: lfpo {command} {'[CONFIG] ' if takes_file else ''}[--key value ...]{switches}", ""]
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
    """A default value for the help text; of nested settings only those that differ from their class's defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = type(value)()
        value = {k: v for k, v in dataclasses.asdict(value).items() if v != getattr(plain, k)}
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in value.items()) + "}"
    return str(value)
