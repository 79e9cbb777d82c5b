"""The program's process: it loads the program and answers requests. It holds no tests and no expected values.

Nothing here is trusted. The program can change this code while it runs, but can only send other plain data.
"""

from __future__ import annotations

import sys
import types

from .link import Link
from .values import Abandoned

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the judge closes the pipe."""
    module = types.ModuleType("program")

    def refer(value: Any) -> tuple[str, Any]:
        if isinstance(value, _OfSuite):
            return "yours", value.number
        what = "awaitable" if hasattr(type(value), "__await__") else "callable" if callable(value) else "object"
        return "mine", (link.number(value), what)

    def resolve(kind: str, content: Any) -> Any:
        if kind == "named":
            return _named(*content)
        number, what = content
        if what == "iterator":
            return (item for items in iter(lambda: _result(link, "next", number), ()) for item in items)
        return (_Function if what == "function" else _OfSuite)(link, number)

    def load(source: str) -> None:
        sys.modules[module.__name__] = module
        exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)

    def define(name: str) -> int:
        """The number of the function that the program defines by this name."""
        if not hasattr(module, name):
            raise NameError(f"name {name!r} is not defined")
        if not callable(found := getattr(module, name)):
            raise TypeError(f"{name!r} is not callable")
        return link.number(found)

    link = Link((inbox, outbox), refer, resolve, Abandoned, follows=True)
    link.operations = {
        "load": load,
        "define": define,
        "call": lambda target, args, kwargs: target(*args, **kwargs),
        "attribute": getattr,
        "iterate": lambda target: link.number(iter(target)),
        "next": _next,
        "await": _await,
        "enter": lambda manager: manager.__enter__(),
        "exit": lambda manager: manager.__exit__(None, None, None) and None,
    }
    try:
        while True:
            kind, *operands = link.receive()
            link.answer(kind, operands)
    except Abandoned:  # the judge has ended
        return


class _OfSuite:
    """An object of the suite. The program can give it back."""

    def __init__(self, link: Link, number: int) -> None:
        self.link, self.number = link, number


class _Function(_OfSuite):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _result(self.link, "call", self.number, args, kwargs)


def _result(link: Link, *request: Any) -> Any:
    kind, found = link.ask(*request)
    if kind == "raised":
        raise found
    return found


def _named(module: str, name: str) -> Any:
    __import__(module)
    found = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _next(iterator: Any) -> tuple[Any, ...]:
    for item in iterator:
        return (item,)
    return ()


_loops: list[Any] = []  # one for all


def _await(awaitable: Any) -> Any:
    import asyncio

    if not _loops:
        _loops.append(asyncio.new_event_loop())
    asyncio.set_event_loop(_loops[0])

    async def result() -> Any:
        return await awaitable

    return _loops[0].run_until_complete(result())
