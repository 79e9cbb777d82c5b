"""The program's process: it loads the program and answers requests. It holds no tests and no expected values.

Nothing here is trusted. The program can change this code while it runs, but can only send other plain data.
"""

from __future__ import annotations

import builtins
import itertools
import operator
import sys
import types

from . import wire

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

MODULE = 0
"""The handle of the program's module."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Answer requests until the judge closes the pipe."""
    _Session(inbox, outbox).serve()


class Callback(wire.Proxy):
    """A function of the suite."""

    def __init__(self, session: _Session, number: int) -> None:
        self._session, self._number = session, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.call_back(self._number, args, kwargs)


class _Session:
    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox = inbox, outbox
        self.module = types.ModuleType("program")
        self.objects: list[Any] = [self.module]
        self.suite_names: set[str] = set()
        self.suite_classes: dict[str, type] = {}
        self.printed: Any = None
        self.loop: Any = None

    def serve(self) -> None:
        while (data := wire.receive(self.inbox)) is not None:
            wire.send(self.outbox, self.answer(*wire.decode(data, self.resolve)))

    def answer(self, operation: str, *arguments: Any) -> bytes:
        try:
            value = getattr(self, "do_" + operation.replace(" ", "_"))(*arguments)
            limit = sys.getrecursionlimit()  # the program's own
            sys.setrecursionlimit(max(limit, 20_000))  # to encode what is nested deeply
            try:
                return wire.encode(("value", value, self.output()), self.refer)
            finally:
                sys.setrecursionlimit(limit)
        except wire.NotAValue as error:
            return wire.encode(("value", _Refused(str(error)), self.output()), self.refer)
        except BaseException as error:  # also SystemExit
            return self.raised(error)

    def output(self) -> str:
        if self.printed is None:
            return ""
        text = self.printed.getvalue()
        self.printed.seek(0)
        self.printed.truncate()
        return str(text[: 2**20])

    def raised(self, error: BaseException) -> bytes:
        names, base = exception_names(type(error))
        state = {name: value for name, value in getattr(error, "__dict__", {}).items() if _is_plain(value)}
        args = error.args if _is_plain(error.args) else None
        return wire.encode(("raised", names, base, args, _text(error), state, self.output()))

    # Objects that are sent as references

    def refer(self, value: Any) -> tuple[str, Any]:
        if type(value) is Callback:
            return "callback", value._number
        if type(value) is _Refused:
            return "refused", (0, value.reason)
        kind = type(value)
        if kind.__name__ in self.suite_names and kind is self.suite_class(kind.__name__):
            return "suite", (kind.__name__, dict(vars(value)))
        self.objects.append(value)
        handle = len(self.objects) - 1
        if isinstance(value, type) and issubclass(value, BaseException):
            return "exception", (handle, *exception_names(value))
        if isinstance(value, type):
            return "class", (handle, f"the class {value.__name__}")
        if isinstance(value, _FUNCTIONS) or kind.__module__ == "functools":
            return "function", (handle,)
        if hasattr(kind, "__next__"):
            return "iterator", (handle, kind.__module__ == self.module.__name__)
        for method, name in (("__anext__", "async iterator"), ("__await__", "awaitable")):
            if hasattr(kind, method):
                return name, (handle,)
        return "instance", (handle, f"an instance of {kind.__name__}")

    def resolve(self, kind: str, payload: Any) -> Any:
        if kind == "object":
            return self.objects[payload]
        if kind == "named":
            __import__(payload[0])
            return operator.attrgetter(payload[1])(sys.modules[payload[0]])
        if kind == "callback":
            return Callback(self, payload)
        if kind == "iterator":
            return itertools.chain.from_iterable(iter(Callback(self, payload), []))
        name, state = payload
        value: Any = object.__new__(self.suite_class(name))
        for key, item in state.items():
            object.__setattr__(value, key, item)
        return value

    def suite_class(self, name: str) -> type:
        """The program's class of that name, which the prompt may define for both sides, or a new one."""
        if name not in self.suite_classes:
            own = getattr(self.module, name, None)
            self.suite_classes[name] = own if isinstance(own, type) else type(name, (_Copy,), {})
        return self.suite_classes[name]

    def call_back(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the judge call a function of the suite. Meanwhile the judge may send requests of its own."""
        wire.send(self.outbox, wire.encode(("callback", number, args, kwargs), self.refer))
        while (data := wire.receive(self.inbox)) is not None:
            kind, *content = wire.decode(data, self.resolve)
            if kind == "returned":
                return content[0]
            if kind == "threw":
                found = getattr(builtins, content[0], Exception)
                raise found(content[1])
            wire.send(self.outbox, self.answer(kind, *content))
        raise SystemExit

    # Operations

    def do_load(self, source: str, capture: bool, suite_classes: list[str]) -> None:
        """Run the program. capture: keep what it prints. suite_classes: names of classes that the suite defines."""
        self.suite_names = set(suite_classes)
        sys.modules[self.module.__name__] = self.module
        if capture:
            import io

            sys.stdout = self.printed = io.StringIO()
        exec(compile(source, "<program>", "exec"), self.module.__dict__)

    def do_global(self, name: str) -> Any:
        if not hasattr(self.module, name):
            raise NameError(f"name {name!r} is not defined")
        return getattr(self.module, name)

    def do_function(self, name: str) -> int:
        """The handle of a callable."""
        self.objects.append(self.do_global(name))
        if not callable(self.objects[-1]):
            raise TypeError(f"{name!r} is not callable")
        return len(self.objects) - 1

    def do_attribute(self, target: Any, name: str) -> Any:
        return getattr(target, name)

    def do_assign(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)

    def do_call(self, target: Any, args: Any, kwargs: Any) -> Any:
        return target(*args, **kwargs)

    def do_call_in_place(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result, and the arguments after the call; None for those that cannot change."""
        value = target(*args, **kwargs)
        return value, [_changeable(argument) for argument in (*args, *kwargs.values())]

    def do_operate(self, name: str, *operands: Any) -> Any:
        if name == "exit":
            return operands[0].__exit__(None, None, None)
        if name in {"enter", "trunc", "floor", "ceil"}:
            return getattr(operands[0], f"__{name}__")()
        own = getattr(builtins, name, None) or getattr(operator, f"__{name}__")
        return own(*operands)

    def do_items(self, handle: int, count: int) -> tuple[list[Any], bool]:
        """The next items, and whether the iterator has ended. An error after the first item is raised next time."""
        items: list[Any] = []
        while len(items) < count:
            try:
                items.append(next(self.objects[handle]))
            except StopIteration:
                return items, True
            except BaseException as error:
                if not items:
                    raise
                self.objects[handle] = _raising(error)
                break
        return items, False

    def do_send(self, handle: int, value: Any) -> tuple[list[Any], bool]:
        try:
            return [self.objects[handle].send(value)], False
        except StopIteration:
            return [], True

    def do_await(self, handle: int) -> Any:
        return self.run(self.objects[handle])

    def do_async_items(self, handle: int) -> tuple[list[Any], bool]:
        try:
            return [self.run(self.objects[handle].__anext__())], False
        except StopAsyncIteration:
            return [], True

    def run(self, awaitable: Any) -> Any:
        if self.loop is None:
            import asyncio

            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)

        async def result() -> Any:
            return await awaitable

        return self.loop.run_until_complete(result())


class _Copy:
    """Base of the classes that stand for the suite's."""

    def __eq__(self, other: Any) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)


class _Refused:
    """Says why a result cannot be sent."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _raising(error: BaseException) -> Any:
    """An iterator that raises the error."""

    def fail() -> None:
        raise error

    return iter(fail, object())


def _changeable(value: Any) -> Any:
    immutable = (int, float, complex, str, bytes, tuple, frozenset, type(None))
    return None if isinstance(value, immutable) or callable(value) else value


def exception_names(kind: type) -> tuple[list[str], str]:
    """Names of the exception's classes that are not built in, and of the first one that is."""
    names: list[str] = []
    for found in kind.__mro__:
        if found.__module__ == "builtins":
            return names, found.__name__
        names.append(found.__name__)
    return [], "Exception"


def _is_plain(value: Any) -> bool:
    try:
        wire.encode(value)
    except BaseException:  # of code of the program
        return False
    return True


def _text(error: BaseException) -> str:
    try:
        return f"{error}"[:300]
    except BaseException:  # its __str__ may be code of the program
        return ""
