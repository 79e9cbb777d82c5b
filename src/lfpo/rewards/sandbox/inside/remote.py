"""Objects of the judge that stand for what the program returned and that cannot be copied.

Results are plain data, copied by value. Functions can only be called, iterators only iterated, coroutines only awaited,
context managers only entered, and what they give is plain data again. Instances of the program's classes are allowed
where the job names its classes.
"""

from __future__ import annotations

import operator

from . import wire

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    Link = Any  # link.Link; that module imports this one

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
    """An iterator or generator of the program. Items are plain data.

    A loop or `list` fetches them in chunks that grow; `next` fetches one, because the suite may change something before
    it wants the next. So does a loop in a suite that uses `send`.
    """

    def __init__(self, link: Link, handle: int) -> None:
        self._link, self._handle, self._chunk = link, handle, 1
        self._items: list[Any] = []  # fetched items, last first
        self._ended = self._loops = False

    def __iter__(self) -> Iterator:
        self._loops = not self._link.sends
        return self

    def __next__(self) -> Any:
        if not self._items and not self._ended:
            self._keep(self._link.ask("items", self._handle, self._chunk))
            self._chunk = min(2 * self._chunk, 1024) if self._loops else 1
        return self._pop()

    def send(self, value: Any) -> Any:
        if not self._ended:
            self._keep(self._link.ask("send", self._handle, value))
        return self._pop()

    def close(self) -> None:
        self._ended, self._items = True, []

    def _keep(self, answer: Any) -> None:
        items, ended = answer
        self._items, self._ended = list(reversed(items)), bool(ended)

    def _pop(self) -> Any:
        if not self._items:
            raise StopIteration
        return self._items.pop()


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
