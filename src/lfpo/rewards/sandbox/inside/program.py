"""The process of the program under test: it loads the program and answers calls. It knows no expected value.

Nothing here is trusted by anyone: the program can change every line of it while it runs, and all it can gain is to send
other built-in values than those it computed.
"""

from __future__ import annotations

import itertools
import sys
import types

from . import wire

TYPE_CHECKING = False  # typing itself would double the time to start
if TYPE_CHECKING:
    from typing import Any

MAX_ITEMS = 1_000_000
MODULE = 0
"""The handle of the program's module."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the other side closes."""
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
    except BaseException as error:  # SystemExit too: the program may not end its own trial
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
    """The nearest class of the error that every Python has."""
    for kind in type(error).__mro__:
        if kind.__module__ == "builtins":
            return kind.__name__
    return "Exception"


def _text(error: BaseException) -> str:
    try:
        return f"{error}"[:300]
    except BaseException:  # its __str__ is the program's code
        return ""
