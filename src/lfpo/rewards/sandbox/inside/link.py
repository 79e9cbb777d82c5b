"""One end of the pipe between judge and program: requests, answers, objects that stay on their side, and exceptions."""

from __future__ import annotations

import _thread
import sys
import types

from . import values
from .values import Abandoned

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ERROR_MODULES = sys.stdlib_module_names - {"unittest", "doctest"} | {"numpy"}
"""Modules whose exceptions keep their class. None of these ends or skips a test."""


class Remote:
    """An object of the other process. It can be called and iterated, and passed back.

    It equals nothing else and has no truth value or attributes: only the other process could answer. By its names a
    program would choose what the suite takes for a method of plain data.
    """

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self, args, kwargs)

    def __iter__(self) -> Any:
        return self._link.ask("iterate", self)

    def __next__(self) -> Any:
        for item in self._link.ask("next", self):
            return item
        raise StopIteration

    def __eq__(self, other: object) -> bool:
        return other is self or (other is not None and self._link.refuse("what its object equals"))

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self._link.refuse("whether its object is true")

    def __contains__(self, other: object) -> bool:
        return self._link.refuse("what its object contains")


class Link:
    """Sends requests, and answers those of the other process while it waits.

    A message is the name of an operation and its operands. The operations `value` and `raised` are answers.
    by_name: whether this side sends functions and types of the standard library by name, else it accepts such names.
    """

    def __init__(self, pipes: tuple[int, int], by_name: bool) -> None:
        (self.inbox, self.outbox), self._by_name = pipes, by_name
        self.operations: dict[str, Callable[..., Any]] = {
            "call": lambda target, args, kwargs: target(*args, **kwargs),
            "iterate": iter,
            "next": _next,
        }
        self._objects: list[Any] = []  # what the other process knows by number
        self._numbers: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}
        self._lock = _thread.RLock()  # both sides may have threads

    def ask(self, *request: Any) -> Any:
        """The result of an operation in the other process, or the exception that it raised there."""
        with self._lock:
            self.send(*request)
            while True:
                kind, *operands = self.receive()
                if kind == "value" and len(operands) == 1:
                    return operands[0]
                if kind == "raised" and len(operands) == 1:
                    raise self.check(operands[0])
                self.answer(kind, operands)

    def call(self, target: Remote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.ask("call", target, args, kwargs)

    def check(self, error: Any) -> BaseException:
        """The exception of the other process that `ask` raises."""
        found: BaseException = error
        return found

    def lost(self, reason: str) -> Abandoned:
        """The exception that ends this process's requests."""
        return Abandoned(reason)

    def refuse(self, what: str) -> bool:
        """Raises an exception: this process does not know `what`."""
        raise TypeError(f"only the suite could say {what}")

    def answer(self, kind: str, operands: Any) -> None:
        """Do what the other process asks for."""
        try:
            self.send("value", self.operations[kind](*operands))
        except Abandoned as error:
            self.lost(str(error))  # the other process waits for ever
            raise
        except BaseException as error:  # whatever was raised is the answer
            self.send("raised", error)

    def send(self, *message: Any) -> None:
        """Raises NotAValue for what cannot be sent."""
        limit = sys.getrecursionlimit()  # the program's own
        sys.setrecursionlimit(max(limit, 20_000))  # for what is nested deeply
        try:
            data = values.encode(message, self.refer)
        finally:
            sys.setrecursionlimit(limit)
        try:
            values.send(self.outbox, data)
        except BrokenPipeError:
            raise self.lost("the program's process ended before it answered") from None

    def receive(self) -> tuple[Any, ...]:
        """The next message."""
        data = values.receive(self.inbox)
        if data is None:
            raise self.lost("the program's process ended before it answered")
        try:
            found = values.decode(data, self.resolve)
        except values.BadBytes as error:
            raise self.lost(f"the program's process sent an invalid answer: {error}") from None
        if type(found) is not tuple or not found or type(found[0]) is not str:
            raise self.lost("the program's process sent an invalid answer")
        return found

    def refer(self, value: Any) -> tuple[str, Any]:
        """Kind and content of what is not plain data."""
        if isinstance(value, BaseException):
            return "error", taken_apart(value)
        if isinstance(value, Remote):
            return "yours", value._number
        named = self._by_name and isinstance(value, types.BuiltinFunctionType | type)
        if named and value.__module__ in sys.stdlib_module_names and "." not in value.__qualname__:
            return "named", (value.__module__, value.__qualname__)
        if id(value) not in self._numbers:  # an object has one number only
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return "mine", self._numbers[id(value)]

    def resolve(self, kind: str, content: Any) -> Any:
        """The object of a kind and content."""
        if kind == "error":
            return rebuilt(*content)
        if kind == "yours":
            return self._objects[content]
        if kind == "named" and not self._by_name:
            return values.named(".".join(content))
        if kind != "mine" or type(content) is not int:
            raise ValueError(f"unknown kind {kind!r}")
        return self._remotes.setdefault(content, Remote(self, content))


def _next(iterator: Any) -> tuple[Any, ...]:
    for item in iterator:
        return (item,)
    return ()


# Exceptions


def taken_apart(error: BaseException) -> tuple[Any, ...]:
    """Module and name of the exception's classes, then its arguments, or its text if they are not plain data."""
    kind: Any = type(error)
    names = [f"{found.__module__}:{found.__name__}" for found in kind.__mro__ if issubclass(found, BaseException)]
    text = ""
    try:
        text = f"{error}"[:300]
        arguments = error.__reduce__()[1] if kind.__module__ == "builtins" else error.args
        values.encode(arguments)
    except BaseException:  # code of the program, or arguments that are not plain data
        arguments = (text,)
    return tuple(names), arguments


def rebuilt(names: Any, arguments: Any) -> BaseException:
    """An exception of the first of the classes that this process knows. Raises ValueError if there is none.

    A class of a library is not initialized, because its constructor may do anything.
    """
    for name in names:
        module, _, member = name.partition(":")
        kind = getattr(sys.modules.get(module), member, None)
        known = isinstance(kind, type) and module.partition(".")[0] in _ERROR_MODULES and kind.__module__ == module
        if not known or not issubclass(kind, BaseException) or issubclass(kind, BaseExceptionGroup):
            continue  # what is in a group is not sent
        if module == "builtins":
            return kind(*arguments)
        error: BaseException = kind.__new__(kind, *arguments)
        error.args = tuple(arguments)
        return error
    raise ValueError("an exception without a class")
