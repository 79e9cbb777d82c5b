"""The program's process: it loads the program and answers requests. It holds no tests and no expected values.

Nothing here is trusted. The program can change this code while it runs, but can only send other built-in values.
"""

from __future__ import annotations

import itertools
import sys
import types

from . import wire

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

MAX_ITEMS = 1_000_000
MODULE = 0
"""The handle of the program's module."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the judge closes the pipe."""
    objects: list[Any] = [types.ModuleType("program")]
    while (data := wire.receive(inbox)) is not None:
        operation, *arguments = wire.decode(data, objects.__getitem__)
        wire.send(outbox, _answer(operation, arguments, objects))


def _answer(operation: str, arguments: list[Any], objects: list[Any]) -> bytes:
    def handle(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    try:
        return wire.encode(("value", _OPERATIONS[operation](objects[MODULE], *arguments)), handle)
    except BaseException as error:  # also SystemExit
        return wire.encode(("raised", _built_in_name(error), _text(error)))


def _load(module: types.ModuleType, source: str) -> None:
    sys.modules[module.__name__] = module
    exec(compile(source, "<program>", "exec"), module.__dict__)


def _items(module: types.ModuleType, target: Any) -> list[Any]:
    return list(itertools.islice(target, MAX_ITEMS))


_OPERATIONS: dict[str, Any] = {
    "load": _load,
    "names": lambda module, names: [name for name in names if hasattr(module, name)],
    "global": getattr,
    "attribute": lambda module, target, name: getattr(target, name),
    "assign": lambda module, target, name, value: setattr(target, name, value),
    "call": lambda module, target, args, kwargs: target(*args, **kwargs),
    "items": _items,
}


def _built_in_name(error: BaseException) -> str:
    """Name of the first built-in class among the error's bases."""
    for kind in type(error).__mro__:
        if kind.__module__ == "builtins":
            return kind.__name__
    return "Exception"


def _text(error: BaseException) -> str:
    try:
        return f"{error}"[:300]
    except BaseException:  # its __str__ may be code of the program
        return ""
