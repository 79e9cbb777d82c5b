"""The judge's end of the pipe to the program, and Handle: what stands for an object of the program that is not data."""

from __future__ import annotations

import _thread
import sys
import types

from . import values
from .plain_base import NotAValue

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any


class Abandoned(BaseException):
    """No result that tests may use. A BaseException, so that `except Exception` of a test does not catch it."""


class Handle:
    """An object of the program. It can be called, iterated, awaited and entered; what that gives is plain data again.

    is_open: the suite named the object, or made it from a class that it named. Only then its attributes and items can
    be read: on any other the names would be the program's choice, where the suite expects the methods of plain data. It
    equals nothing and has no truth value, because only the program could say what it equals.
    """

    __slots__ = ("_chunk", "_is_class", "_items", "_link", "_number", "_open")

    def __init__(self, link: Link, number: int, is_open: bool = False, is_class: bool = False) -> None:
        for name, value in zip(self.__slots__, (1, is_class, [], link, number, is_open), strict=True):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if not self._open or (name.startswith("__") and name != "__name__"):
            raise AttributeError(f"an object of the program has no attribute {name!r} here")
        found = self._link.ask("attribute", self, name)
        if isinstance(found, Handle) and found._number in self._link.created:
            object.__setattr__(found, "_open", True)  # as in `root.left.value`, for a node that the suite made
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        self._named("operate", "setattr", self, name, value)

    def _named(self, *request: Any) -> Any:
        if not self._open:
            raise TypeError("an object of the program can only be called, iterated, awaited and entered")
        return self._link.ask(*request)

    def __iter__(self) -> Any:
        found = self._link.ask("iterate", self)
        return self if found == self._number else Handle(self._link, found)._loop()

    def _loop(self) -> Any:
        object.__setattr__(self, "_chunk", 2)
        return self

    def __next__(self) -> Any:
        if not self._items:
            items = list(self._link.ask("items", self, self._chunk))
            self._items.extend(reversed(items))
            object.__setattr__(self, "_chunk", self._chunk if self._chunk == 1 else min(2 * self._chunk, 1024))
            if not items:
                raise StopIteration
        return self._items.pop()

    def __enter__(self) -> Any:
        return self._link.ask("enter", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """An error of the suite is not suppressed: the assertions after it would not run."""
        self._link.ask("exit", self)

    def __eq__(self, other: object) -> bool:
        if other is self or other is None:
            return other is self
        return bool(self._link.refuse("only the program could say what its object equals"))

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self._link.refuse("only the program could say whether its object is true"))

    def __contains__(self, other: object) -> bool:
        return bool(self._link.refuse("only the program could say what its object contains"))


def _operation(name: str) -> Any:
    def operate(self: Handle, *operands: Any) -> Any:
        return self._named("operate", name, self, *operands)

    return operate


for _name in ("len", "str", "repr", "getitem", "setitem", "delitem", "int", "float", "format"):
    setattr(Handle, f"__{_name}__", _operation(_name))


class Link:
    """Sends requests to the program's process. `gone` is the reason why there are no more answers, else empty.

    refused: why the current test fails whatever it catches. calls: how often the program was called. shared: containers
    that both processes hold, None if calls get copies. size: of the last message, in bytes. stops: whether a test may
    see StopIteration.
    """

    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox = inbox, outbox
        self.gone = self.refused = ""
        self.stops, self.calls, self.size = False, 0, 0
        self.shared: values.Shared | None = None
        self._lock = _thread.RLock()  # the suite may have threads
        self.created: set[int] = set()  # numbers of the objects that the suite made
        self._ours: list[Any] = []
        self._errors: dict[tuple[str, ...], Any] = {}

    def refuse(self, reason: str) -> None:
        """Raises Abandoned, and fails the current test."""
        self.refused = self.refused or reason
        raise Abandoned(reason)

    def call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call in the program's process."""
        many = self.shared is not None and len(self.shared.objects) > values.MAX_SHARED
        if self.shared is not None and (many or self.size > values.MAX_SHARED_BYTES):
            self.shared, self.size = values.Shared(), 0
        self.calls += 1
        found = self.ask("create" if target._is_class else "call", target, args, kwargs)
        if target._is_class and isinstance(found, Handle):
            object.__setattr__(found, "_open", True)
            self.created.add(found._number)
        return found

    def ask(self, *request: Any) -> Any:
        """The result of an operation in the program's process, or the exception that it raised there.

        Raises Abandoned if the process has ended, and TypeError for an argument that cannot be sent.
        """
        with self._lock:
            message = self._encoded(request)
            while True:
                kind, content = self._exchange(message)
                if kind != "callback":
                    break
                message = self._called_back(content)
        if kind == "value":
            return content
        if kind == "raised" and isinstance(content, BaseException):
            return self._raise(content)
        raise self._lost("the program's process sent an invalid answer")

    def _encoded(self, request: Any) -> bytes:
        """A message: which containers are shared (none, new, as before), then the request."""
        mode = b"-" if self.shared is None else b"s" if self.shared.objects else b"n"
        try:
            return mode + values.encode(request, self._refer, self.shared)
        except NotAValue as error:
            raise TypeError(f"cannot be passed to the program: {error}") from error

    def _lost(self, reason: str) -> Abandoned:
        self.gone = self.gone or reason
        return Abandoned(self.gone)

    def _exchange(self, message: bytes) -> tuple[str, Any]:
        if self.gone:
            raise Abandoned(self.gone)
        try:
            values.send(self.outbox, message)
            reply = values.receive(self.inbox)
        except BrokenPipeError:
            reply = None
        if reply is None:
            raise self._lost("the program's process ended before it answered")
        self.size = max(len(message), len(reply))
        try:
            kind, content = values.decode(reply, self._resolve, self.shared)
        except (values.BadBytes, TypeError, ValueError) as error:
            raise self._lost(f"the program's process sent an invalid answer: {error}") from None
        return (kind, content) if type(kind) is str else ("", None)

    def _raise(self, error: BaseException) -> None:
        """Raise the program's exception. One that could end the test's own loops or its run fails the test."""
        ends = isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit) and not self.stops
        if ends or not isinstance(error, Exception | SystemExit | GeneratorExit):
            self.refuse(f"the program raised {type(error).__name__}: {error}"[:300])
        raise error

    def _called_back(self, content: Any) -> bytes:
        """Call a function of the suite for the program. The reply to the program."""
        try:
            number, args, kwargs = content
            return self._encoded(("returned", self._ours[number](*args, **kwargs)))
        except Abandoned as error:
            self._lost(str(error))  # the program still waits for the function's result
            raise
        except BaseException as error:  # the program may catch what the suite's function raises
            return self._encoded(("threw", error))

    def _refer(self, value: Any) -> tuple[str, Any] | None:
        """Kind and content of what is not plain data: the program's own objects, and the suite's, which it can call."""
        if isinstance(value, Handle):
            return "object", value._number
        if isinstance(value, BaseException):
            return "error", taken_apart(value)
        if isinstance(value, types.BuiltinFunctionType | type) and value.__module__ in sys.stdlib_module_names:
            if not isinstance(getattr(value, "__self__", sys), types.ModuleType):
                return None
            return "named", (value.__module__, value.__qualname__)
        if hasattr(value, "__next__"):
            self._ours.append(lambda: [item for _, item in zip((0,), value, strict=False)])
            return "iterator", len(self._ours) - 1
        self._ours.append(value)
        return "function" if callable(value) else "opaque", len(self._ours) - 1

    def _resolve(self, kind: str, content: Any) -> Any:
        if kind == "handle":
            return Handle(self, int(content))
        if kind == "awaitable":
            return _awaited(self, int(content))
        if kind == "function":
            return self._ours[content]
        if kind == "class":
            return error_class(self._errors, tuple(content))
        if kind == "error":
            return rebuilt(self._errors, *content)
        raise values.BadBytes(f"unknown kind {kind!r}")


async def _awaited(link: Link, number: int) -> Any:
    """A coroutine of the program. Awaiting it runs the program's to its end."""
    return link.ask("await", Handle(link, number))


# Exceptions


def names_of(kind: type) -> list[str]:
    """Module and name of the exception's classes, from its own to the first built-in one."""
    names = [f"{found.__module__}:{found.__name__}" for found in kind.__mro__ if issubclass(found, BaseException)]
    return names[: [name.startswith("builtins:") for name in names].index(True) + 1]


def taken_apart(error: BaseException) -> tuple[Any, ...]:
    """Names of its classes, arguments and text."""
    kind: Any = type(error)
    try:
        text = f"{error}"[:300]
        arguments = error.__reduce__()[1] if kind.__module__ == "builtins" else error.args
        values.encode(arguments)
    except BaseException:  # code of the program, or arguments that are not plain data
        return names_of(kind), None, text if "text" in locals() else ""
    return names_of(kind), arguments, text


def error_class(made: dict[tuple[str, ...], Any], names: tuple[str, ...]) -> Any:
    """The class of these names: one of Python, of the suite or of a library, else a new one. Raises ValueError."""
    if not names:
        raise ValueError("an exception without a class")
    module, _, name = names[0].partition(":")
    found = getattr(sys.modules.get(module), name, None)
    allowed = sys.stdlib_module_names - {"unittest", "doctest"} | {"tests", "numpy", "pandas"}  # none ends a test
    if isinstance(found, type) and issubclass(found, BaseException) and module.partition(".")[0] in allowed:
        return found
    if names not in made:
        made[names] = type(name, (error_class(made, names[1:]),), {"__str__": _text, "__module__": module})
    return made[names]


def rebuilt(made: dict[tuple[str, ...], Any], names: list[str], arguments: Any, text: str) -> BaseException:
    """The exception. A class of a library is not initialized, because its constructor may do anything."""
    kind = error_class(made, tuple(names))
    if issubclass(kind, BaseExceptionGroup):
        return Exception(text)  # what is in it is not sent
    arguments = (text,) if arguments is None else tuple(arguments)
    if kind.__module__ == "builtins":
        return kind(*arguments)
    error: BaseException = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error)["_text"] = str(text)
    return error


def _text(error: Any) -> str:
    return str(vars(error).get("_text", BaseException.__str__(error)))
