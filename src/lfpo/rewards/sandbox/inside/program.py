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
from .exceptions import Classes, class_names, taken_apart

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

MODULE = 0
"""The handle of the program's module."""
_FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType),
)


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
        self.handles: dict[int, int] = {}
        self.errors = Classes({})
        self.suite_names: set[str] = set()
        self.suite_classes: dict[str, type] = {}
        self.printed: list[Any] = []
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
            return wire.encode(("refused", str(error), self.output()))
        except BaseException as error:  # also SystemExit
            return self.raised(error)

    def output(self) -> list[str]:
        """What the program has written to stdout and stderr since the last answer, if the suite looks at it."""
        texts = []
        for stream in self.printed:
            stream.flush()
            texts.append(stream.buffer.getvalue()[: 2**20].decode("utf-8", "replace"))
            stream.buffer.seek(0)
            stream.buffer.truncate()
        return texts

    def raised(self, error: BaseException) -> bytes:
        printed = self.output()
        try:
            return wire.encode(("raised", error, printed), self.refer)
        except wire.NotAValue:  # a long chain of causes
            error.__cause__ = error.__context__ = None
            return wire.encode(("raised", error, printed), self.refer)

    # Objects that are sent as references

    def refer(self, value: Any) -> tuple[str, Any]:
        if type(value) is Callback:
            return "callback", value._number
        kind = type(value)
        if kind.__name__ in self.suite_names and kind is self.suite_class(kind.__name__):
            return "suite", (kind.__name__, dict(vars(value)))
        if isinstance(value, BaseException) and "_suite_number" in vars(value):
            return "callback", vars(value)["_suite_number"]
        handle = self.handle(value)
        if isinstance(value, BaseException):
            return "error", (handle, taken_apart(value, _is_plain))
        if isinstance(value, type) and issubclass(value, BaseException):
            return "exception", (handle, class_names(value))
        if isinstance(value, type):
            return "class", (handle, f"the class {value.__name__}")
        if isinstance(value, _FUNCTIONS) or kind.__module__ == "functools":
            return "function", (handle,)
        if kind.__module__ == "contextlib" and (hasattr(kind, "__enter__") or hasattr(kind, "__aenter__")):
            return "manager", (handle,)
        if hasattr(kind, "__next__"):
            return "iterator", (handle, kind.__module__ == self.module.__name__)
        for method, name in (("__anext__", "async iterator"), ("__await__", "awaitable")):
            if hasattr(kind, method):
                return name, (handle,)
        return "instance", (handle, f"an instance of {kind.__name__}")

    def handle(self, value: Any) -> int:
        """The number of an object. It has one number only, so that the suite can tell whether two are the same."""
        number = self.handles.get(id(value), 0)
        if self.objects[number] is not value:
            number = self.handles[id(value)] = len(self.objects)
            self.objects.append(value)
        return number

    def resolve(self, kind: str, payload: Any) -> Any:
        if kind == "object":
            return self.objects[payload]
        if kind == "error":
            error: Any = self.errors.build(*payload[1])
            error._suite_number = payload[0]
            return error
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
                raise content[0]
            wire.send(self.outbox, self.answer(kind, *content))
        raise SystemExit

    # Operations

    def do_load(self, source: str, capture: bool, suite_classes: list[str]) -> None:
        """Run the program. capture: keep what it prints. suite_classes: names of classes that the suite defines."""
        self.suite_names = set(suite_classes)
        sys.modules[self.module.__name__] = self.module
        if capture:
            self.printed = [_stream(""), _stream("")]
            sys.stdout, sys.stderr = self.printed
        exec(compile(source, "<program>", "exec", dont_inherit=True), self.module.__dict__)

    def do_input(self, text: str) -> None:
        """Let the program read the text from standard input."""
        sys.stdin = _stream(text)

    def do_global(self, name: str) -> Any:
        if not hasattr(self.module, name):
            raise NameError(f"name {name!r} is not defined")
        return getattr(self.module, name)

    def do_class(self, name: str) -> Any:
        found = self.do_global(name)
        if isinstance(found, type):
            wire.BY_REFERENCE.add(found)
        return found

    def do_function(self, name: str) -> int:
        """The handle of a callable."""
        if not callable(found := self.do_global(name)):
            raise TypeError(f"{name!r} is not callable")
        return self.handle(found)

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
        if name in {"exit", "aexit"}:
            manager, error = operands
            details = (None, None, None) if error is None else (type(error), error, error.__traceback__)
            return getattr(manager, f"__{name}__")(*details)
        if name in {"enter", "aenter", "trunc", "floor", "ceil"}:
            return getattr(operands[0], f"__{name}__")()
        if name in {"copy", "deepcopy"}:
            import copy

            return getattr(copy, name)(*operands)
        own = getattr(builtins, name, None) or getattr(operator, f"__{name}__")
        return own(*operands)

    def do_plain(self, instance: Any) -> Any:
        """The value of a built-in type that an instance of a subclass is equal to."""
        return wire.plain_base(instance)

    def do_items(self, handle: int, count: int) -> tuple[list[Any], bool]:
        """The next items, and whether the iterator has ended. An error after the first item is raised next time."""
        items: list[Any] = []
        while len(items) < count:
            try:
                items.append(next(self.objects[handle]))
                if count > 1 and not _is_plain(items[-1]):
                    break  # it may end with the next item, like the groups of itertools.groupby
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


def _stream(text: str) -> Any:
    """A text stream in memory, with the bytes in `buffer`."""
    import io

    return io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogatepass")), "utf-8", "surrogatepass", newline="\n")


def _raising(error: BaseException) -> Any:
    """An iterator that raises the error."""

    def fail() -> None:
        raise error

    return iter(fail, object())


def _changeable(value: Any) -> Any:
    immutable = (int, float, complex, str, bytes, tuple, frozenset, type(None))
    return None if isinstance(value, immutable) or callable(value) else value


def _is_plain(value: Any) -> bool:
    try:
        wire.encode(value)
    except BaseException:  # of code of the program
        return False
    return True
