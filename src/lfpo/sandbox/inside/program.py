"""The program's process: it loads the program and calls its functions for the judge.

Nothing in this process is trusted. The program can change this code while it runs, but can only send other plain data.
"""

from __future__ import annotations

import sys
import types

from . import values

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

NAME = "program"
"""Name of the program's module."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the judge closes the pipe: ("load", source), or ("call", name, arguments, keywords).

    An answer is ("value", result), ("raised", name of a built-in class, arguments) or ("object", what it is) for a
    result that is not plain data.
    """
    module = types.ModuleType(NAME)
    while data := values.receive(inbox):
        kind, *operands = values.decode(data)
        try:
            if kind == "load":
                sys.modules[NAME] = module
                exec(compile(operands[0], "<program>", "exec", dont_inherit=True), module.__dict__)
                result = None
            else:
                result = _function(module, operands[0])(*operands[1], **operands[2])
        except BaseException as error:  # whatever was raised is the answer
            values.send(outbox, _encoded("raised", *_parts(error)))
            continue
        try:
            values.send(outbox, _encoded("value", result))
        except values.NotAValue as error:
            values.send(outbox, _encoded("object", str(error)[:300]))


def _function(module: types.ModuleType, name: str) -> Any:
    """The function that the program defines by this name."""
    if not hasattr(module, name):
        raise NameError(f"name {name!r} is not defined")
    if not callable(function := getattr(module, name)):
        raise TypeError(f"{name!r} is not callable")
    return function


def _encoded(*answer: object) -> bytes:
    limit = sys.getrecursionlimit()  # the program's own
    sys.setrecursionlimit(max(limit, 20_000))  # for what is nested deeply
    try:
        return values.encode(answer, lessens=True)
    finally:
        sys.setrecursionlimit(limit)


def _parts(error: BaseException) -> tuple[str, object]:
    """Name of the exception's first built-in class, and its arguments, or its text if they are not plain data or its
    class is the program's own."""
    kind = type(error)
    name = next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
    text = ""
    try:
        text = f"{error}"[:300]
        if kind.__module__ == "builtins":
            arguments = error.__reduce__()[1]
            values.encode(arguments)
            return name, arguments
    except BaseException:  # code of the program, or arguments that are not plain data
        pass
    return name, (text,)
