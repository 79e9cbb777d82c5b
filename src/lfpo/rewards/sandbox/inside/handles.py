"""The judge's side of the program: requests to it, and handles for its objects that are not plain data."""

from __future__ import annotations

import _thread
import sys
import types

from . import values
from .link import Link
from .plain_types import NotAValue
from .values import Abandoned

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

_METHODS = {"send", "close", "throw", "cache_info", "cache_clear"}
"""Methods of generators and cached functions. No test asks them whether a result is right."""


class Handle:
    """An object of the program. It can be called, iterated, awaited and entered, and attributes can be read that are
    not functions: by its names the program would choose what the suite takes for a method of plain data.

    It equals nothing and has no truth value, because only the program could say what it equals.
    """

    def __init__(self, program: Program, number: int, is_callable: bool) -> None:
        self.__dict__.update(_program=program, _number=number, _is_callable=is_callable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_callable:
            raise TypeError("an object of the program is not callable")
        return self._program.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") or name == "__name__":
            found = self._program.ask("attribute", self, name)
            is_function = found._is_callable if isinstance(found, Handle) else callable(found)
            if not is_function or name in _METHODS:
                return found
        raise AttributeError(f"an object of the program has no attribute {name!r} here")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an object of the program cannot be changed here")

    def __iter__(self) -> Any:
        return self._program.handle(self._program.ask("iterate", self))

    def __next__(self) -> Any:
        for item in self._program.ask("next", self):
            return item
        raise StopIteration

    def __enter__(self) -> Any:
        return self._program.ask("enter", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """An error of the suite is not suppressed: the assertions after it would not run."""
        self._program.ask("exit", self)

    def __eq__(self, other: object) -> bool:
        if other is self or other is None:
            return other is self
        return bool(self._program.refuse("only the program could say what its object equals"))

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self._program.refuse("only the program could say whether its object is true"))

    def __contains__(self, other: object) -> bool:
        return bool(self._program.refuse("only the program could say what its object contains"))


class Program:
    """The program's process. `gone` is the reason why there are no more answers, else empty.

    refused: why the current test fails whatever it catches. calls: how often the current test called the program.
    stops: whether a test may see StopIteration.
    """

    def __init__(self, pipes: tuple[int, int], stops: bool) -> None:
        self.link = Link(pipes, self._refer, self._resolve, self._lost)
        self.link.operations = {"call": self._called_back, "next": self._item}
        self.gone = self.refused = ""
        self.stops, self.calls = stops, 0
        self._lock = _thread.RLock()  # the suite may have threads
        self._handles: dict[int, Handle] = {}

    def begin(self, shares: bool) -> bool:
        """Begin a test. Whether a call since the last begin has changed a container that the judge sent."""
        changed = self.link.shared is None or self.link.shared.changed
        self.refused, self.calls = "", 0
        self.link.shared = values.Shared() if shares else None
        return changed

    def refuse(self, reason: str) -> None:
        """Raises Abandoned, and fails the current test."""
        self.refused = self.refused or reason
        raise Abandoned(reason)

    def call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call in the program's process."""
        with self._lock:
            if self.link.shared is not None and len(self.link.shared.objects) > values.MAX_SHARED:
                self.link.shared = values.Shared(self.link.shared.changed)
            self.calls += 1
            return self.ask("call", target, args, kwargs)

    def ask(self, *request: Any) -> Any:
        """The result of an operation in the program's process, or the exception that it raised there.

        Raises Abandoned if the process has ended, and TypeError for an argument that cannot be sent.
        """
        with self._lock:
            if self.gone:
                raise Abandoned(self.gone)
            try:
                kind, found = self.link.ask(*request)
            except NotAValue as error:
                raise TypeError(f"cannot be passed to the program: {error}") from error
        if kind == "value":
            return found
        if not isinstance(found, BaseException):
            raise self._lost("the program's process sent an invalid answer")
        # An exception that could end the test's own loops, or its run, fails the test.
        ends = isinstance(found, StopIteration | StopAsyncIteration | GeneratorExit) and not self.stops
        if ends or not isinstance(found, Exception | SystemExit | GeneratorExit):
            self.refuse(f"the program raised {type(found).__name__}: {found}"[:300])
        raise found

    def handle(self, number: Any, is_callable: bool = True) -> Handle:
        """The one handle of an object of the program."""
        if number not in self._handles:
            self._handles[number] = Handle(self, int(number), is_callable)
        return self._handles[number]

    def _lost(self, reason: str) -> Abandoned:
        self.gone = self.gone or reason
        return Abandoned(self.gone)

    def _called_back(self, number: int, args: Any, kwargs: Any) -> Any:
        return self.link.objects[number](*args, **kwargs)

    def _item(self, number: int) -> tuple[Any, ...]:
        for item in self.link.objects[number]:
            return (item,)
        return ()

    def _refer(self, value: Any) -> tuple[str, Any] | None:
        if isinstance(value, Handle):
            return "yours", value._number
        if isinstance(value, types.BuiltinFunctionType | type) and value.__module__ in sys.stdlib_module_names:
            if not isinstance(getattr(value, "__self__", sys), types.ModuleType):
                return None
            return "named", (value.__module__, value.__qualname__)
        what = "iterator" if hasattr(value, "__next__") else "function" if callable(value) else "object"
        return "mine", (self.link.number(value), what)

    def _resolve(self, kind: str, content: Any) -> Any:
        number, what = content
        if kind != "mine" or type(number) is not int:
            raise ValueError(f"unknown kind {kind!r}")
        return self._awaited(number) if what == "awaitable" else self.handle(number, what == "callable")

    async def _awaited(self, number: int) -> Any:
        """A coroutine of the program. Awaiting it runs the program's to its end."""
        return self.ask("await", self.handle(number))
