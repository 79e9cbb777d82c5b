"""Arguments of a command, [CONFIG] --key value ..., as its configuration."""

import dataclasses
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lfpo.config.build import build, command_of, load_yaml, merge, typed
from lfpo.config.checks import options, type_hints
from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.help import describe
from lfpo.config.json import Json


def text_keys(cls: type, prefix: str = "") -> set[str]:
    """The keys of a configuration that hold text, those of nested dataclasses as `a.b`."""
    keys: set[str] = set()
    for name, hint in type_hints(cls).items():
        first = options(hint)[0]
        if dataclasses.is_dataclass(first):
            keys |= text_keys(typing.cast(type, first), f"{prefix}{name}.")
        elif first is str:
            keys.add(prefix + name)
    return keys


def parse_overrides(arguments: list[str], texts: Collection[str] = ()) -> Json:
    """`--a.b value` and `--a.b=value` pairs as a nested mapping; a bare `--flag` means true. Values are YAML, but those
    of the keys in `texts` are kept as they are typed (`null` means none there too). A later value replaces an earlier
    one, `--a '{c: 1}'` all that `--a.b` gave.

    Raises UserError for an argument that does not begin with `--`, and for `--a.b` after a plain `--a`.
    """
    result: Json = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise UserError(f"argument {argument!r}: expected --key value")
        name, equals, text = argument[2:].partition("=")
        # A key may be written with dashes; a column keeps its name.
        key = name if name.startswith("columns.") else name.replace("-", "_")
        has_value = bool(equals or (rest and not rest[0].startswith("--")))
        if not equals:
            text = rest.pop(0) if has_value else "true"
        as_typed = has_value and key in texts and text != "null"
        node = result
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UserError(f"--{name}: {parent!r} was already given a plain value")
        node[leaf] = text if as_typed else typed(text)
    return result


def read_arguments(rest: list[str], about: str, *classes: type, recipes_of: str | None = None) -> tuple[Json, Json]:
    """A command's arguments, [CONFIG] --key value ...: the values of the configuration file or recipe, and the others.

    about: the help, which is printed for -h and --help; then the command exits. classes: whose keys are given.
    recipes_of: the command whose files and recipes are read (None: it takes no file). Raises UserError for another's.
    """
    if {"-h", "--help"} & set(rest):
        print(about, flush=True)
        raise SystemExit(0)
    values: Json = {}
    path, rest = split_file(rest) if recipes_of else (None, rest)
    if path is not None:
        values = load_yaml(path)
        meant = command_of(values)
        if meant != recipes_of and not user_path(path).is_file():  # a shipped recipe, so its keys are right
            raise UserError(f"recipe {path!r} is for `lfpo {meant}`, not for `lfpo {recipes_of}`")
        if Path(path).name == "config.yaml" and (Path(path).parent / "run.json").exists():
            values["output_dir"] = str(Path(path).parent)  # a run's own folder, wherever it was moved to
    return values, parse_overrides(rest, set().union(*map(text_keys, classes)))


def file_first(rest: list[str]) -> list[str]:
    """The arguments with the file of `--config FILE`, TRL's way to name it, in front, where this program expects it."""
    for i, argument in enumerate(rest):
        if argument == "--config" and i + 1 < len(rest):
            return [rest[i + 1], *rest[:i], *rest[i + 2 :]]
        if argument.startswith("--config="):
            return [argument.partition("=")[2], *rest[:i], *rest[i + 1 :]]
    return rest


def configure(
    cls: type, rest: list[str], *, takes_file: bool, command: str, flags: tuple[str, ...] = ()
) -> tuple[Any, set[str]]:
    """A command's configuration from its arguments (see `read_arguments`), and those of its flags that were given.

    flags: names of switches that are no keys of the configuration, such as "resume" for --resume.
    Raises UserError for a wrong key or value.
    """
    about = describe(cls, command, takes_file, flags)
    values, overrides = read_arguments(rest, about, cls, recipes_of=command if takes_file else None)
    switches = {name: overrides.pop(name) for name in flags if name in overrides}
    for name, value in switches.items():
        if not isinstance(value, bool):  # --resume goes on from the newest checkpoint, never from the one named
            raise UserError(f"--{name} takes no value, found {value!r}")
    config: Any = build(cls, merge(values, overrides), called(command, rest if takes_file else []))
    return config, {name for name, value in switches.items() if value}


def called(command: str, rest: list[str]) -> str:
    """A command with the configuration file in its arguments, as errors begin: `lfpo train my.yaml`."""
    file, _ = split_file(rest)
    return f"lfpo {command} {file}" if file else f"lfpo {command}"


def split_file(rest: list[str]) -> tuple[str | None, list[str]]:
    """The configuration file or recipe among a command's arguments (None: there is none), and the other arguments."""
    rest = file_first(rest)
    return (rest[0], rest[1:]) if rest and not rest[0].startswith("--") else (None, rest)
