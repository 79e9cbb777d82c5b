"""The program's process: it loads the program and answers requests. It holds no tests and no expected values.

Nothing here is trusted. The program can change this code while it runs, but can only send other plain data.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types

from . import values
from .link import error_class, names_of, rebuilt, taken_apart

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the judge closes the pipe."""
    _Session(inbox, outbox).serve()


class _OfSuite:
    """An object of the suite. The program can give it back."""

    def __init__(self, session: _Session, number: int) -> None:
        self._session, self._number = session, number


class _Function(_OfSuite):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.call_back((self._number, args, kwargs))


class _Session:
    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox = inbox, outbox
        self.module = types.ModuleType("program")
        self.objects: list[Any] = []
        self.handles: dict[int, int] = {}
        self.errors: dict[tuple[str, ...], Any] = {}
        self.shared: values.Shared | None = None
        self.loop: Any = None

    def serve(self) -> None:
        while (request := self.receive()) is not None:
            self.answer(request)

    def receive(self) -> Any:
        data = values.receive(self.inbox)
        if data is None:
            return None
        if data[:1] != b"s":
            self.shared = values.Shared() if data[:1] == b"n" else None
        return values.decode(data[1:], self.resolve, self.shared)

    def send(self, kind: str, content: Any) -> None:
        limit = sys.getrecursionlimit()  # the program's own
        sys.setrecursionlimit(max(limit, 20_000))  # for what is nested deeply
        try:
            data = values.encode((kind, content), self.refer, self.shared)
        finally:
            sys.setrecursionlimit(limit)
        values.send(self.outbox, data)

    def answer(self, request: Any) -> None:
        try:
            self.send("value", getattr(self, "do_" + request[0])(*request[1:]))
        except BaseException as error:  # also SystemExit
            self.send("raised", error)

    def refer(self, value: Any) -> tuple[str, Any]:
        if isinstance(value, _OfSuite):
            return "function", value._number
        if isinstance(value, BaseException):
            return "error", taken_apart(value)
        if type(value) is _Instance:
            return "handle", self.number(value.value)
        return "awaitable" if hasattr(type(value), "__await__") else "handle", self.number(value)

    def number(self, value: Any) -> int:
        """The number of an object. It has one number only."""
        if id(value) not in self.handles:
            self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.handles[id(value)]

    def resolve(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self.objects[content]
        if kind == "error":
            return rebuilt(self.errors, *content)
        if kind == "class":
            return error_class(self.errors, tuple(content))
        if kind == "named":
            __import__(content[0])
            return operator.attrgetter(content[1])(sys.modules[content[0]])
        if kind == "iterator":
            return (item for items in iter(_Function(self, content), []) for item in items)
        return (_Function if kind == "function" else _OfSuite)(self, content)

    def call_back(self, call: Any) -> Any:
        """Have the judge call a function of the suite. Meanwhile the judge may send requests of its own."""
        self.send("callback", call)
        while (request := self.receive()) is not None:
            if request[0] == "returned":
                return request[1]
            if request[0] == "threw":
                raise request[1]
            self.answer(request)
        raise SystemExit

    # Operations

    def do_load(self, source: str) -> None:
        sys.modules[self.module.__name__] = self.module
        exec(compile(source, "<program>", "exec", dont_inherit=True), self.module.__dict__)

    def do_define(self, name: str) -> tuple[str, Any]:
        """What the program defines by this name: a class of exceptions, another class, or a function."""
        if not hasattr(self.module, name):
            raise NameError(f"name {name!r} is not defined")
        found = getattr(self.module, name)
        if isinstance(found, type) and issubclass(found, BaseException):
            return "error", names_of(found)
        if not callable(found):
            raise TypeError(f"{name!r} is not callable")
        return "class" if isinstance(found, type) else "function", self.number(found)

    def do_call(self, target: Any, args: Any, kwargs: Any) -> Any:
        return target(*args, **kwargs)

    def do_create(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _Instance(target(*args, **kwargs))

    def do_attribute(self, target: Any, name: str) -> Any:
        return getattr(target, name)

    def do_operate(self, name: str, *operands: Any) -> Any:
        return (getattr(builtins, name, None) or getattr(operator, name))(*operands)

    def do_iterate(self, target: Any) -> int:
        return self.number(iter(target))

    def do_items(self, iterator: Any, count: int) -> list[Any]:
        """The next items. An error after the first one is raised at the next request."""
        items: list[Any] = []
        while len(items) < count:
            try:
                items.append(next(iterator))
            except StopIteration:
                break
            except BaseException as error:
                if not items:
                    raise
                self.objects[self.number(iterator)] = _raising(error)
                break
        return items

    def do_await(self, awaitable: Any) -> Any:
        import asyncio

        self.loop = self.loop or asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

        async def result() -> Any:
            return await awaitable

        return self.loop.run_until_complete(result())

    def do_enter(self, manager: Any) -> Any:
        return manager.__enter__()

    def do_exit(self, manager: Any) -> None:
        manager.__exit__(None, None, None)


class _Instance:
    """Sends an instance as a handle, also if it could be sent as plain data."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _raising(error: BaseException) -> Any:
    """An iterator that raises the error."""

    def fail() -> None:
        raise error

    return iter(fail, object())
