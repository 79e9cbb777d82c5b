"""One end of the pipe between judge and program: requests, answers, objects that stay on their side, and exceptions."""

from __future__ import annotations

import sys

from . import values
from .values import Abandoned

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ERROR_MODULES = sys.stdlib_module_names - {"unittest", "doctest"} | {"tests", "numpy", "pandas"}
"""Modules whose exceptions keep their class. None of these ends or skips a test."""


class Link:
    """Sends requests, and answers those of the other process while it waits.

    operations: what the other process may ask for. refer: kind and content of an object of this process that is not
    plain data. resolve: the object of a kind and content. lost: makes the exception that ends this process's requests,
    from a reason. shared: containers that both processes hold, None if a message has copies. follows: share what the
    letter of a message says.

    A message is a letter for what is shared (- nothing, n containers from now on, s as before), then an operation and
    its operands. The operations `value` and `raised` are answers.
    """

    def __init__(
        self,
        pipes: tuple[int, int],
        refer: Any,
        resolve: Any,
        lost: Callable[[str], BaseException],
        follows: bool = False,
    ) -> None:
        self._follows = follows
        (self.inbox, self.outbox), self._refer, self._resolve, self._lost = pipes, refer, resolve, lost
        self.operations: dict[str, Callable[..., Any]] = {}
        self.shared: values.Shared | None = None
        self.objects: list[Any] = []  # what the other process knows by number
        self._numbers: dict[int, int] = {}
        self._errors: dict[tuple[str, ...], Any] = {}

    def number(self, value: Any) -> int:
        """The number of an object of this process. It has one number only."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self._numbers[id(value)]

    def ask(self, *request: Any) -> tuple[str, Any]:
        """`value` and the result of an operation in the other process, or `raised` and its exception."""
        self.send(*request)
        while True:
            kind, *operands = self.receive()
            if kind in ("value", "raised") and len(operands) == 1:
                return kind, operands[0]
            self.answer(kind, operands)

    def answer(self, kind: str, operands: Any) -> None:
        """Do what the other process asks for."""
        try:
            self.send("value", self.operations[kind](*operands))
        except Abandoned as error:
            self._lost(str(error))  # the other process waits for ever
            raise
        except BaseException as error:  # whatever was raised is the answer
            self.send("raised", error)

    def send(self, *message: Any) -> None:
        """Raises NotAValue for what cannot be sent."""
        mode = b"-" if self.shared is None else b"s" if self.shared.objects else b"n"
        limit = sys.getrecursionlimit()  # the program's own
        sys.setrecursionlimit(max(limit, 20_000))  # for what is nested deeply
        try:
            data = mode + values.encode(message, self.refer, self.shared)
        finally:
            sys.setrecursionlimit(limit)
        try:
            values.send(self.outbox, data)
        except BrokenPipeError:
            raise self._lost("the program's process ended before it answered") from None

    def receive(self) -> tuple[Any, ...]:
        """The next message."""
        data = values.receive(self.inbox)
        if data is None:
            raise self._lost("the program's process ended before it answered")
        if self._follows and data[:1] != b"s":
            self.shared = values.Shared() if data[:1] == b"n" else None
        try:
            found = values.decode(data[1:], self.resolve, self.shared)
        except values.BadBytes as error:
            raise self._lost(f"the program's process sent an invalid answer: {error}") from None
        if type(found) is not tuple or not found or type(found[0]) is not str:
            raise self._lost("the program's process sent an invalid answer")
        return found

    def refer(self, value: Any) -> tuple[str, Any] | None:
        """Kind and content of what is not plain data."""
        if isinstance(value, BaseException):
            return "error", taken_apart(value)
        found: tuple[str, Any] | None = self._refer(value)
        return found

    def resolve(self, kind: str, content: Any) -> Any:
        """The object of a kind and content."""
        if kind == "error":
            return rebuilt(self._errors, *content)
        return self.objects[content] if kind == "yours" else self._resolve(kind, content)


# Exceptions


def taken_apart(error: BaseException) -> tuple[Any, ...]:
    """Module and name of the exception's classes, to the first built-in one, then its arguments and text."""
    kind: Any = type(error)
    names = [f"{found.__module__}:{found.__name__}" for found in kind.__mro__ if issubclass(found, BaseException)]
    names = names[: [name.startswith("builtins:") for name in names].index(True) + 1]
    text = ""
    try:
        text = f"{error}"[:300]
        arguments = error.__reduce__()[1] if kind.__module__ == "builtins" else error.args
        values.encode(arguments)
    except BaseException:  # code of the program, or arguments that are not plain data
        return tuple(names), None, text
    return tuple(names), arguments, text


def _error_class(made: dict[tuple[str, ...], Any], names: tuple[str, ...]) -> Any:
    """The class of these names: one of Python, of the suite or of a library, else a new one. Raises ValueError."""
    if not names:
        raise ValueError("an exception without a class")
    module, _, name = names[0].partition(":")
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type) and issubclass(found, BaseException) and module.partition(".")[0] in _ERROR_MODULES:
        return found
    if names not in made:
        made[names] = type(name, (_error_class(made, names[1:]),), {"__str__": _text, "__module__": module})
    return made[names]


def rebuilt(made: dict[tuple[str, ...], Any], names: Any, arguments: Any, text: str) -> BaseException:
    """The exception. A class of a library is not initialized, because its constructor may do anything."""
    kind = _error_class(made, tuple(names))
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
