"""The judge's end of the pipe to the program: requests, and the objects that stand for what cannot be copied.

Results are plain data, copied by value. Functions can only be called, iterators only iterated, coroutines only awaited,
and what they give is plain data again. Instances of the program's classes are allowed where the job names its classes.
"""

from __future__ import annotations

import builtins
import itertools
import sys
import types

from . import wire

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any

MAX_OUTPUT = 2**20
"""Characters of printed output that one call may give."""


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
    """An iterator of the program. Items are plain data, fetched in chunks that grow unless the test uses `send`."""

    def __init__(self, link: Link, handle: int) -> None:
        self._link, self._handle = link, handle
        self._items: list[Any] = []
        self._chunk, self._ended = 1, False

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if not self._items and not self._ended:
            self._fetch("items", self._chunk)
            self._chunk = 1 if self._link.sends else min(2 * self._chunk, 1024)
        if not self._items:
            raise StopIteration
        return self._items.pop()

    def send(self, value: Any) -> Any:
        self._fetch("send", value)
        return next(self)

    def _fetch(self, operation: str, argument: Any) -> None:
        items, self._ended = self._link.ask(operation, self._handle, argument)
        self._items = list(items)[::-1]

    def close(self) -> None:
        self._items, self._ended = [], True


class Instance(wire.Proxy):
    """An instance of a class of the program, or the class itself. What it answers is the program's word.

    It can be called, read, changed, iterated and passed back, and the operators work. Comparing it with plain data
    raises Abandoned: an object that claims to equal everything would pass any test of a value.
    """

    __slots__ = ("_handle", "_link")

    def __init__(self, link: Link, handle: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_handle", handle)

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

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return self._link.ask("operate", "exit", self)

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
        raise Abandoned("the test compares an instance of the program's class with plain data")

    return compare


_UNARY = "len str repr bool hash iter reversed int float complex bytes abs neg pos invert index round trunc floor ceil"
_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
for _name in (*_UNARY.split(), "format", "enter", "getitem", "setitem", "delitem", "contains"):
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
    calls change their arguments. stops: whether a test may see StopIteration. sends: whether it uses `send`.
    """

    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox, self.gone = inbox, outbox, ""
        self.namespace: dict[str, Any] = {}
        self.instances = self.in_place = self.stops = self.sends = False
        self._sent: set[type] = set()
        self._callbacks: list[Callable[..., Any]] = []
        self._exceptions: dict[tuple[str, ...], type[BaseException]] = {}
        self._output = 0

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call in the program's process."""
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
        if answer[0] == "raised" and len(answer) == 7:
            raise self._rebuilt(*answer[1:6])
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

    def _print(self, text: Any) -> None:
        """What the program printed, to where the suite's own output goes."""
        if type(text) is str and text and self._output < MAX_OUTPUT:
            self._output += len(text)
            sys.stdout.write(text)

    # Objects that are sent as references

    def _refer(self, value: Any) -> tuple[str, Any] | None:
        kind = type(value)
        if kind in (Function, Iterator, Instance):
            return "object", value._handle
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
        if callable(value):
            self._callbacks.append(value)
            return "callback", len(self._callbacks) - 1
        return None

    def _resolve(self, kind: str, payload: Any) -> Any:
        if kind == "function":
            return Function(self, payload[0])
        if kind == "iterator":
            handle, of_own_class = payload
            return Instance(self, handle) if of_own_class and self.instances else Iterator(self, handle)
        if kind == "awaitable":
            return awaited(self, payload[0])
        if kind == "async iterator":
            return async_items(self, payload[0])
        if kind == "callback":
            return self._callbacks[payload]
        if kind == "suite":
            return self._suite_object(*payload)
        if kind == "exception" and self.instances:
            return self._exception_class(*payload[1:])
        if kind in {"instance", "class"} and self.instances:
            return Instance(self, payload[0])
        if kind in {"instance", "class", "exception", "refused"}:
            raise Abandoned(f"the program returned something that is not plain data: {str(payload[1])[:100]}")
        raise wire.BadBytes(f"unknown kind {kind!r}")

    def _suite_object(self, name: str, state: dict[str, Any]) -> Any:
        """An instance of the suite's class. Its state must not hide a method.

        A class with a comparison of its own must have been an argument: it could be equal to what the test expects.
        """
        kind = self.namespace.get(name)
        if not isinstance(kind, type) or kind.__module__ != self.namespace.get("__name__"):
            raise wire.BadBytes(f"unknown class {name!r}")
        code = getattr(kind.__eq__, "__code__", None)
        if kind not in self._sent and code and code.co_filename.startswith(("<setup", "<test")):
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
            return wire.encode(("threw", type(error).__name__, str(error)))

    # Exceptions

    def _exception_class(self, names: list[str], base: str) -> type[BaseException]:
        """A class for an exception of the program: names of its own classes, first the class itself, and the built-in
        class below them."""
        if not names:
            kind = getattr(builtins, base)
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                raise TypeError(f"{base} is not an exception")
            return kind
        key = (*names, base)
        if key not in self._exceptions:
            parent = self._exception_class(names[1:], base)
            self._exceptions[key] = type(names[0], (parent,), {"__str__": _message, "__init__": _keep_arguments})
        return self._exceptions[key]

    def _rebuilt(
        self, names: list[str], base: str, args: tuple[Any, ...] | None, text: str, state: dict[str, Any]
    ) -> BaseException:
        """The program's exception.

        StopIteration, StopAsyncIteration and GeneratorExit become Abandoned unless the suite mentions StopIteration:
        inside map() or a generator of the test they would end the iteration, and `all(map(...))` over nothing is true.
        """
        abandoned = Abandoned(f"the program raised {base}: {text}"[:300])
        try:
            kind = self._exception_class(names, base)
            if issubclass(kind, StopIteration | StopAsyncIteration | GeneratorExit) and not self.stops:
                return abandoned
            if not issubclass(kind, Exception | SystemExit | GeneratorExit):
                return abandoned
            error = kind(*((text,) if args is None else args))
            if names:
                vars(error).update({name: value for name, value in state.items() if not hasattr(kind, name)})
                vars(error)["_text"] = text
        except (TypeError, ValueError, AttributeError):
            return abandoned
        return error


def _message(error: Any) -> str:
    return str(error.__dict__.get("_text", ""))


def _keep_arguments(error: Any, *args: Any) -> None:
    error.args = args


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
