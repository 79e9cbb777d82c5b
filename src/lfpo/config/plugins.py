"""Names to objects: an entry of a plain dict, or a dotted path `package.module:attribute` outside the package."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from lfpo.config.errors import UserError, nearest
from lfpo.config.torch_state import torch_state_kept

DOTTED = r"[.:]"  # what a dotted path has and a name has not


def resolve(name: str, known: Mapping[str, str], *, kind: str) -> Any:
    """The object of a name in `known`, or of a dotted path. kind: the noun in messages.

    Raises UserError for an unknown name, and for a module or attribute that does not exist. What a module of the user's
    raises keeps its traceback.
    """
    module_name, attribute = dotted(name, known, kind=kind)
    try:
        with torch_state_kept():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if name in known or not f"{module_name}.".startswith(f"{missing}."):
            raise  # one of the modules that it imports
        put = f"; put {missing.replace('.', '/')}.py into this folder, or its folder into PYTHONPATH"
        raise UserError(f"{kind} {name!r}: there is no module {missing!r}{nearest(name, known, put)}") from error
    if not hasattr(module, attribute):
        raise UserError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def dotted(name: str, known: Mapping[str, str], *, kind: str) -> tuple[str, str]:
    """The module and attribute that a name or dotted path leads to; imports nothing. Raises UserError for a name that
    is neither known nor a path."""
    path = known.get(name, name)
    module, _, attribute = path.replace(":", ".").rpartition(".")
    if not module:
        example = f"my_module:my_{kind.replace(' ', '_')}"
        raise UserError(f"unknown {kind} {name!r}{nearest(name, known)} (a dotted path is written {example})")
    # A user's module is found in the current folder: by its path, as "" would be another after a function's os.chdir.
    if name not in known and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    return module, attribute
