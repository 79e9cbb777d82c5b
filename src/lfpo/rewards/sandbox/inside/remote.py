"""The judge's end of the pipe to the program: requests, and the objects that stand for what cannot be copied.

Results are plain data, copied by value. Functions can only be called, iterators only iterated, coroutines only awaited,
context managers only entered, and what they give is plain data again. Instances of the program's classes are allowed
where the job names its classes.
"""

from __future__ import annotations

import itertools
import operator
import sys
import types

from . import wire
from .exceptions import Classes, taken_apart

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from typing import Any

MAX_OUTPUT = 2**20
"""Characters of printed output that one call may give."""
SUITE = ("<setup", "<test")
"""Beginnings of the file names under which the suite is compiled."""


class Abandoned(BaseException):
    """No result that tests may use. A BaseException, so that `except Exception` of a test does not catch it."""


class Function(wire.Proxy):
    """A function of the program. It can be called; the call's result is plain data.

    Attributes, such as `cache_info`, can be read only if the suite named the function: on a returned one they would be
    the program's own methods, where the suite expects those of plain data.
    """

    def __init__(self, link: Link, handle: int, named: bool = False) -> None:
        self._link, self._handle, self._named = link, handle, named

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if not self._named or (name.startswith("__") and name != "__name__"):
            raise AttributeError(f"a function of the program has no attribute {name!r}")
        return self._link.ask("attribute", self, name)


class Iterator(wire.Proxy):
    """An iterator of the program. Items are plain data."""

    def __init__(self, link: Link, handle: int) -> None:
        self._handle, self._items = handle, generator(link, handle)

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        return next(self._items)


def generator(link: Link, handle: int) -> Generator[Any, Any, None]:
    """A generator of the program. Items are fetched in chunks that grow, unless the tests use `send`."""
    chunk, received = 1, None
    while True:
        if received is None:
            items, ended = link.ask("items", handle, chunk)
            chunk = 1 if link.sends else min(2 * chunk, 1024)
        else:
            items, ended = link.ask("send", handle, received)
        for item in items:
            received = yield item
        if ended:
            return


class Manager(wire.Proxy):
    """A context manager of the program."""

    __slots__ = ("_handle", "_link")

    _link: Link
    _handle: int

    def __init__(self, link: Link, handle: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_handle", handle)

    def __enter__(self) -> Any:
        return self._link.ask("operate", "enter", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return bool(self._link.ask("operate", "exit", self, _told(error))) and _is_raised_by_suite(error, trace)

    async def __aenter__(self) -> Any:
        return await self._link.ask("operate", "aenter", self)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return bool(await self._link.ask("operate", "aexit", self, _told(error))) and _is_raised_by_suite(error, trace)


def _told(error: Any) -> Any:
    """What the program's context manager learns of an exception: nothing of failed assertions."""
    return None if isinstance(error, AssertionError) or not isinstance(error, Exception) else error


def _is_raised_by_suite(error: Any, trace: Any) -> bool:
    """Whether a `raise` statement of the suite raised the exception.

    Only such an exception can be suppressed by the program. Others may come from what the program did or returned, and
    the assertions after them would not run.
    """
    import opcode

    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or isinstance(error, AssertionError) or not isinstance(error, Exception):
        return False
    code = trace.tb_frame.f_code
    is_raise = code.co_code[trace.tb_lasti] == opcode.opmap["RAISE_VARARGS"]
    return bool(is_raise and code.co_filename.startswith(SUITE))


class Instance(Manager):
    """An instance of a class of the program, or the class itself. What it answers is the program's word.

    It can be called, read, changed, iterated and passed back, and the operators work. Plain data is compared with the
    built-in value in it; without one the comparison raises Abandoned: an object that claims to equal everything would
    pass any test of a value.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in {"__name__", "__doc__", "__dict__"}:
            raise AttributeError(name)
        return self._link.ask("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("assign", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._link.ask("operate", "delattr", self, name)

    def __instancecheck__(self, value: Any) -> bool:
        return bool(self._link.ask("operate", "isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return bool(self._link.ask("operate", "issubclass", value, self))

    def __next__(self) -> Any:
        items, _ = self._link.ask("items", self._handle, 1)
        if not items:
            raise StopIteration
        return items[0]

    def __copy__(self) -> Any:
        return self._link.ask("operate", "copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._link.ask("operate", "deepcopy", self)

    def __await__(self) -> Any:
        return awaited(self._link, self._handle).__await__()


def _operator(name: str, reflected: bool = False) -> Any:
    def operate(self: Instance, *arguments: Any) -> Any:
        operands = (*arguments, self) if reflected else (self, *arguments)
        return self._link.ask("operate", name, *operands)

    return operate


def _comparison(name: str) -> Any:
    def compare(self: Instance, other: Any) -> Any:
        if isinstance(other, Instance):
            return self._link.ask("operate", name, self, other)
        if other is None and name in {"eq", "ne"}:
            return name == "ne"
        return getattr(operator, name)(self._link.ask("plain", self), other)

    return compare


_UNARY = "len str repr bool hash iter reversed int float complex bytes abs neg pos invert index round trunc floor ceil"
_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
for _name in (*_UNARY.split(), "aiter", "format", "getitem", "setitem", "delitem", "contains"):
    setattr(Instance, f"__{_name}__", _operator(_name))
for _name in _BINARY.split():
    setattr(Instance, f"__{_name}__", _operator(_name))
    setattr(Instance, f"__r{_name}__", _operator(_name, reflected=True))
    if _name != "divmod":
        setattr(Instance, f"__i{_name}__", _operator(f"i{_name}"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Instance, f"__{_name}__", _comparison(_name))


async def awaited(link: Link, handle: int) -> Any:
    """A coroutine of the program. Awaiting it runs the program's to its end."""
    return link.ask("await", handle)


async def async_items(link: Link, handle: int) -> AsyncIterator[Any]:
    """An asynchronous iterator of the program."""
    while True:
        items, ended = link.ask("async items", handle)
        for item in items:
            yield item
        if ended:
            return


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
        self._sent: set[type] = set()
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
        while True:
            answer = self._exchange(message)
            if answer[0] != "callback":
                break
            message = self._run_callback(answer)
        self._print(answer[-1])
        if answer[0] == "value" and len(answer) == 3:
            return answer[1]
        if answer[0] == "raised" and isinstance(answer[1], BaseException):
            raise answer[1]
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
            self._sent.add(kind)
            return _suite_instance(value)
        if hasattr(kind, "__next__"):
            self._callbacks.append(lambda: list(itertools.islice(value, 1)))
            return "iterator", len(self._callbacks) - 1
        self._callbacks.append(value)  # also what is not callable: the program can give it back
        return "callback", len(self._callbacks) - 1

    def _resolve(self, kind: str, payload: Any) -> Any:
        if kind == "function":
            return Function(self, payload[0])
        if kind == "iterator":
            handle, form = payload
            if form == "own" and self.instances:
                return self._instance(handle)
            return generator(self, handle) if form == "generator" else Iterator(self, handle)
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
        if kind in {"instance", "class", "exception", "refused"}:
            raise Abandoned(f"the program returned something that is not plain data: {str(payload[1])[:100]}")
        raise wire.BadBytes(f"unknown kind {kind!r}")

    def _instance(self, handle: int) -> Instance:
        """One object for each of the program's, so that `is` works."""
        return self._instances.setdefault(handle, Instance(self, handle))

    def _suite_object(self, name: str, state: dict[str, Any]) -> Any:
        """An instance of the suite's class. Its state must not hide a method.

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
            if callable(getattr(kind, key, None)):
                raise wire.BadBytes(f"{key!r} is a method")
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
    return "suite", (type(value).__name__, state)


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
