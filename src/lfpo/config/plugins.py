"""Names to objects: an entry of a plain dict, or a dotted path `package.module:attribute` outside the package."""

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from lfpo.config.errors import UserError, last_line, nearest
from lfpo.config.torch_state import torch_state_kept

DOTTED = r"[.:]"  # what a dotted path has and a name has not


def resolve(name: str, known: Mapping[str, str], *, kind: str) -> Any:
    """The object of a name in `known`, or of a dotted path. kind: the noun in messages.

    Raises UserError for an unknown name, a module or attribute that does not exist, and a module of the user's that
    cannot be imported.
    """
    module_name, attribute = dotted(name, known, kind=kind)
    try:
        with torch_state_kept():
            module = importlib.import_module(module_name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        if name in known:
            raise
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise UserError(f"{kind} {name!r}: {module_name!r} cannot be imported: {last_line(error)}") from error
        put = f"; put {missing.replace('.', '/')}.py into this folder, or its folder into PYTHONPATH"
        what_to_do = nearest(name, known, put)
        raise UserError(f"{kind} {name!r}: there is no module {missing!r}{what_to_do}") from error
    if not hasattr(module, attribute):
        raise UserError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def dotted(name: str, known: Mapping[str, str], *, kind: str) -> tuple[str, str]:
    """The module and attribute that a name or dotted path leads to; imports nothing. Raises UserError for a name that
    is neither known nor a path."""
    path = known.get(name, name)
    module, _, attribute = path.replace(":", ".").rpartition(".")
    if not module:
        example = kind.replace(" ", "_")
        if not known:
            raise UserError(f"{kind} {name!r}: expected a dotted path such as my_module.my_{example}")
        raise UserError(f"unknown {kind} {name!r}{nearest(name, known)} (or a dotted path such as my_module:{example})")
    # A user's module is found in the current folder: by its path, as "" would be another after a function's os.chdir.
    with contextlib.suppress(FileNotFoundError):  # the folder was removed
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    return module, attribute
