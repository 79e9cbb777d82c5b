"""The judge's end of the pipe to the program: it sends requests and receives built-in values."""

from __future__ import annotations

import builtins

from . import wire

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn


class Abandoned(BaseException):
    """The program's process ended, or raised an exception that tests must not catch with `except Exception`."""


class Remote:
    """Refers to an object in the program's process that is not a built-in value: a function, instance or generator.

    It can be called, passed back and iterated, and its attributes can be read and set. Comparing it or using it as a
    truth value raises AssertionError, because the program could define the result.
    """

    __slots__ = ("_handle", "_link")

    def __init__(self, link: Link, handle: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_handle", handle)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._link.ask("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("assign", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._link.ask("items", self))

    def _not_a_value(self, *_: object) -> NoReturn:
        raise AssertionError("the program returned something that is not a built-in value")

    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __bool__ = _not_a_value
    __hash__ = None  # type: ignore[assignment]


class Link:
    """Sends requests to the program's process. `gone` is the reason why there are no more answers, else empty."""

    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox, self.gone = inbox, outbox, ""

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result of an operation in the program's process, or the exception that it raised there.

        Raises Abandoned if the process has ended, and TypeError for an argument that cannot be sent.
        """
        if self.gone:
            raise Abandoned(self.gone)
        try:
            request = wire.encode((operation, *arguments), self._handle_of)
        except wire.NotAValue as error:
            raise TypeError(f"cannot be passed to the program: {error}") from error
        reply = self._exchange(request)
        if reply is None:
            self.gone = "the program's process ended before it answered"
            raise Abandoned(self.gone)
        return self._unpack(reply)

    def _exchange(self, request: bytes) -> bytes | None:
        try:
            wire.send(self.outbox, request)
        except BrokenPipeError:
            return None
        return wire.receive(self.inbox)

    def _unpack(self, reply: bytes) -> Any:
        try:
            answer = wire.decode(reply, lambda handle: Remote(self, handle))
        except wire.BadBytes:
            answer = None
        if type(answer) is tuple and len(answer) == 2 and type(answer[0]) is str:
            return answer[1]
        if type(answer) is tuple and len(answer) == 3 and all(type(part) is str for part in answer):
            raise _rebuilt(answer[1], answer[2])
        self.gone = "the program's process sent an invalid answer"
        raise Abandoned(self.gone)

    def _handle_of(self, value: Any) -> int | None:
        return value._handle if type(value) is Remote else None


def _rebuilt(name: str, text: str) -> BaseException:
    """The program's exception as one of the same built-in type, so that a test can expect a ValueError.

    StopIteration and StopAsyncIteration become Abandoned: inside map() or a generator of the test they would end the
    iteration, and `all(map(...))` over nothing is true. UnicodeError's subclasses cannot be built from a message.
    """
    kind = getattr(builtins, name, None)
    excluded = (StopIteration, StopAsyncIteration, UnicodeError)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, excluded):
        return kind(text)
    return Abandoned(f"the program raised {name}: {text}")
