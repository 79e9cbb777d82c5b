"""Names to objects: an entry of a plain dict, or a dotted path `package.module:attribute` outside the package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from lfpo.base.errors import UserError, nearest


def resolve(name: str, known: Mapping[str, str], *, kind: str, expected: type | None = None) -> Any:
    """The object of that name or dotted path.

    known: name -> dotted path. kind: the noun in messages. expected: the type the object must have, if any.
    Raises UserError for an unknown name, a module or attribute that does not exist, and an object of another type.
    """
    path = known.get(name, name)
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    if not module_name:
        raise UserError(f"unknown {kind} {name!r}{nearest(name, known)} (or a dotted path such as my_module:{kind})")
    if "" not in sys.path:
        sys.path.insert(0, "")  # find a user's module in the current folder
    try:
        value = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and something that it imports does not
        raise UserError(f"{kind} {name!r}: there is no module {error.name!r}{nearest(name, known)}") from error
    except AttributeError as error:
        raise UserError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}") from error
    if expected is not None and not isinstance(value, expected):
        raise UserError(f"{kind} {name!r}: expected a {expected.__name__}, found {type(value).__name__}")
    return value
