"""The judge's end of the pipe to the program: requests, answers, and what is sent as a reference."""

from __future__ import annotations

import _thread
import itertools
import sys
import types

from . import wire
from .exceptions import Classes, taken_apart
from .remote import SUITE, Abandoned, Function, Instance, Iterator, Manager, async_items, awaited

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

MAX_OUTPUT = 2**20
"""Characters of printed output that one call may give."""


class Link:
    """Sends requests to the program's process. `gone` is the reason why there are no more answers, else empty.

    namespace: the suite's names. instances: whether instances of the program's classes are allowed. in_place: whether
    calls change their arguments. input: whether the program reads what the suite puts in `sys.stdin`. stops: whether a
    test may see StopIteration. sends: whether it uses `send`.
    """

    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox, self.gone = inbox, outbox, ""
        self.namespace: dict[str, Any] = {}
        self.instances = self.in_place = self.input = self.stops = self.sends = False
        self._lock = _thread.RLock()  # the suite may have threads
        self._sent: dict[type, set[str]] = {}
        self._callbacks: list[Any] = []
        self._errors = Classes({"__str__": _message, "__init__": _made_by_suite, "__getattr__": _attribute})
        self._instances: dict[int, Instance] = {}
        self._output, self._stdin = 0, sys.stdin

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call in the program's process."""
        if self.input and sys.stdin is not self._stdin:
            self._stdin = sys.stdin
            self.ask("input", self._stdin.read())
        if not self.in_place:
            return self.ask("call", target, args, kwargs)
        value, changed = self.ask("call in place", target, args, kwargs)
        for old, new in zip((*args, *kwargs.values()), changed, strict=True):
            _update(old, new)
        return value

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result of an operation in the program's process, or the exception that it raised there.

        Raises Abandoned if the process has ended or the result is not allowed, and TypeError for an argument that
        cannot be sent.
        """
        if self.gone:
            raise Abandoned(self.gone)
        try:
            message = wire.encode((operation, *arguments), self._refer)
        except wire.NotAValue as error:
            raise TypeError(f"cannot be passed to the program: {error}") from error
        with self._lock:
            while (answer := self._exchange(message))[0] == "callback":
                message = self._run_callback(answer)
        self._print(answer[-1])
        if answer[0] == "value" and len(answer) == 3:
            return answer[1]
        if answer[0] == "raised" and isinstance(answer[1], BaseException):
            raise answer[1]
        if answer[0] == "refused":
            raise _not_plain(answer[1])
        raise self._lost("the program's process sent an invalid answer")

    def _lost(self, reason: str) -> Abandoned:
        self.gone = reason
        return Abandoned(reason)

    def _exchange(self, message: bytes) -> tuple[Any, ...]:
        try:
            wire.send(self.outbox, message)
            reply = wire.receive(self.inbox)
        except BrokenPipeError:
            reply = None
        if reply is None:
            raise self._lost("the program's process ended before it answered")
        try:
            answer = wire.decode(reply, self._resolve)
        except wire.BadBytes:
            answer = None
        if type(answer) is tuple and len(answer) > 1 and type(answer[0]) is str:
            return answer
        raise self._lost("the program's process sent an invalid answer")

    def _print(self, texts: Any) -> None:
        """What the program wrote to stdout and stderr, to where the suite's own output goes."""
        for text, stream in zip(texts if type(texts) is list else (), (sys.stdout, sys.stderr), strict=False):
            if type(text) is str and text and self._output < MAX_OUTPUT:
                self._output += len(text)
                stream.write(text)

    # Objects that are sent as references

    def _refer(self, value: Any) -> tuple[str, Any]:
        kind = type(value)
        if isinstance(value, wire.Proxy):
            return "object", value._handle  # type: ignore[attr-defined]
        if isinstance(value, BaseException):
            if (handle := vars(value).get("_handle")) is not None:
                return "object", handle
            self._callbacks.append(value)
            return "error", (len(self._callbacks) - 1, taken_apart(value, _is_plain))
        if isinstance(value, type) and "_handle" in vars(value):
            return "object", vars(value)["_handle"]
        if kind is types.BuiltinFunctionType and isinstance(value.__self__, types.ModuleType | None):
            return "named", (value.__module__, value.__name__)
        if isinstance(value, types.FunctionType | type) and value.__module__ in sys.stdlib_module_names:
            return "named", (value.__module__, value.__qualname__)
        if kind.__module__ == self.namespace.get("__name__") and not isinstance(value, type):
            name, state = _suite_instance(value)
            self._sent.setdefault(kind, set()).update(state)
            return "suite", (name, state)
        if hasattr(kind, "__next__"):
            self._callbacks.append(lambda: list(itertools.islice(value, 1)))
            return "iterator", len(self._callbacks) - 1
        self._callbacks.append(value)  # also what is not callable: the program can give it back
        return "callback", len(self._callbacks) - 1

    def _resolve(self, kind: str, payload: Any) -> Any:
        if kind == "function":
            return Function(self, payload[0])
        if kind == "iterator":
            handle, own = payload
            return self._instance(handle) if own and self.instances else Iterator(self, handle)
        if kind == "manager":
            return Manager(self, payload[0])
        if kind == "awaitable":
            return awaited(self, payload[0])
        if kind == "async iterator":
            return async_items(self, payload[0])
        if kind == "callback":
            return self._callbacks[payload]
        if kind == "suite":
            return self._suite_object(*payload)
        if kind == "error":
            return self._rebuilt(payload[0], *payload[1])
        if kind == "exception" and self.instances:
            found = self._errors.of([(module, name) for module, name in payload[1]])
            if type(payload[0]) is int and found.__module__ == Classes.__module__:
                found._link, found._handle = self, payload[0]  # type: ignore[attr-defined]
            return found
        if kind in {"instance", "class"} and self.instances:
            return self._instance(payload[0])
        if kind in {"instance", "class", "exception"}:
            raise _not_plain(payload[1])
        raise wire.BadBytes(f"unknown kind {kind!r}")

    def _instance(self, handle: int) -> Instance:
        """One object for each of the program's, so that `is` works."""
        return self._instances.setdefault(handle, Instance(self, handle))

    def _suite_object(self, name: str, state: dict[str, Any]) -> Any:
        """An instance of the suite's class. Functions may only be where an argument had an attribute, and no attribute
        of Python's own, such as `__dict__`, is set.

        A class with a comparison of its own must have been an argument: it could be equal to what the test expects.
        """
        kind = self.namespace.get(name)
        if not isinstance(kind, type) or kind.__module__ != self.namespace.get("__name__"):
            raise wire.BadBytes(f"unknown class {name!r}")
        code = getattr(kind.__eq__, "__code__", None)
        if kind not in self._sent and code and code.co_filename.startswith(SUITE):
            raise wire.BadBytes(f"class {name!r} has a comparison of its own")
        value: Any = object.__new__(kind)
        for key, item in state.items():
            hides = key.startswith("__") or callable(getattr(kind, key, None))
            if hides or (callable(item) and key not in self._sent.get(kind, ())):
                raise wire.BadBytes(f"{key!r} is a method, or would be one")
            object.__setattr__(value, key, item)
        return value

    def _run_callback(self, answer: tuple[Any, ...]) -> bytes:
        """Call a function of the suite for the program. The reply to the program."""
        try:
            _, number, args, kwargs = answer
            value = self._callbacks[number](*args, **kwargs)
            return wire.encode(("returned", value), self._refer)
        except Abandoned as error:
            self.gone = self.gone or str(error)  # the program still waits for the callback's result
            raise
        except BaseException as error:  # the program may catch what the suite's function raises
            return wire.encode(("threw", error), self._refer)

    def _rebuilt(self, handle: int, *parts: Any) -> BaseException:
        """The program's exception.

        StopIteration, StopAsyncIteration and GeneratorExit become Abandoned unless the suite mentions StopIteration:
        inside map() or a generator of the test they would end the iteration, and `all(map(...))` over nothing is true.
        """
        try:
            error = self._errors.build(*parts)
        except (AttributeError, TypeError, ValueError):
            return Abandoned("the program raised an exception that cannot be built again")
        ends = isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit) and not self.stops
        if ends or not isinstance(error, Exception | SystemExit | GeneratorExit):
            return Abandoned(f"the program raised {type(error).__name__}: {error}"[:300])
        if self.instances and type(error).__module__ == Classes.__module__:
            vars(error).update(_link=self, _handle=handle)
        return error


def _not_plain(what: Any) -> Abandoned:
    return Abandoned(f"the program returned something that is not plain data: {str(what)[:100]}")


def _message(error: Any) -> str:
    return str(error.__dict__["_text"]) if "_text" in error.__dict__ else BaseException.__str__(error)


def _made_by_suite(error: Any, *args: Any, **kwargs: Any) -> None:
    """For an exception that the suite creates, as in `raise E(1)`: arguments and attributes of the program's."""
    kind = type(error)
    if "_handle" in vars(kind):
        made = kind._link.ask("call", kind, args, kwargs)
        args = made.args
        vars(error).update(vars(made))
    error.args = args


def _attribute(error: Any, name: str) -> Any:
    """A method of an exception of the program's class, or an attribute of that class, where the suite names classes."""
    if name.startswith("_") or "_link" not in vars(error):
        raise AttributeError(f"{type(error).__name__!r} object has no attribute {name!r}")
    return error._link.ask("attribute", error, name)


def _is_plain(value: Any) -> bool:
    try:
        wire.encode(value)
    except wire.NotAValue:
        return False
    return True


def _suite_instance(value: Any) -> tuple[str, Any]:
    """Class and attributes of an instance of one of the suite's classes."""
    fields = getattr(type(value), "__dataclass_fields__", None)
    state = {name: getattr(value, name) for name in fields} if fields is not None else dict(vars(value))
    return type(value).__name__, state


def _update(old: Any, new: Any) -> None:
    """Give an argument of the suite the content that the program left in its copy."""
    if type(old) is not type(new):
        return
    if isinstance(old, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(list(old), new, strict=True)):
            if isinstance(before, list | dict | set | bytearray) and type(before) is type(after):
                _update(before, after)
            else:
                old[number] = after
    elif isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif type(old).__name__ == "deque":
        old.clear()
        old.extend(new)
    elif type(old).__name__ == "ndarray" and old.shape == new.shape:
        old[...] = new
    elif hasattr(old, "__dict__") and not callable(old):
        vars(old).update(vars(new))
