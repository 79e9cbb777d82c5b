"""Values between processes: pickles of built-in values only, and records that stand for everything else.

Unpickling creates built-in containers, numbers, texts and records, and calls nothing of the sender's choice: the only
global is MAKE, which makes a record, and neither a record nor MAKE can be called, changed or filled by another opcode.
Afterwards the records become values by a closed table of pure constructors (plain_types.py). References to one object
stay references to one object.
"""

from __future__ import annotations

import _functools  # type: ignore[import-not-found]
import io
import os
import sys
import types

if "functools" in sys.modules:
    import _pickle
else:  # _pickle needs `partial` of functools, whose import takes a tenth of a job
    _stub: Any = types.ModuleType("functools")
    _stub.partial = _functools.partial
    sys.modules["functools"] = _stub
    import _pickle

    del sys.modules["functools"]
import _operator

from .plain_types import NotAValue, from_plain, to_plain

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[Any], tuple[str, Any] | None]  # kind and content of an object that is not a value, or None
    Resolve = Callable[[str, Any], Any]  # the object of a kind and content

MAX_FRAME = 2**28
MAX_SHARED = 10_000
"""Containers that two processes share before they start anew: each message looks at all of them."""
_ATOMS = {int, float, str, bytes, bool, type(None)}
_SHARED: dict[str, Any] = {"list": list, "dict": dict, "set": set, "bytearray": bytearray}


class Abandoned(BaseException):
    """No result that tests may use. A BaseException, so that `except Exception` of a test does not catch it."""


class BadBytes(Exception):
    """The bytes are not an encoded value."""


class Record:
    """Stands for a value that is not of a built-in type, until it is built."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: str, content: Any) -> None:
        self.kind, self.content = kind, content

    def __setstate__(self, state: Any) -> None:
        raise BadBytes("a record cannot be changed")


class _Make:
    __slots__ = ()

    def __call__(self, kind: str, content: Any) -> Record:
        return Record(kind, content)

    def __setstate__(self, state: Any) -> None:
        raise BadBytes("a global cannot be changed")

    def __reduce__(self) -> str:
        return "MAKE"


MAKE = _Make()


class Shared:
    """Mutable containers that two processes both hold. A message between them has the content of those that changed.

    changed: whether a message of the other process changed a container that this one had sent.
    """

    def __init__(self, changed: bool = False) -> None:
        self.objects: list[Any] = []
        self.known: list[Any] = []  # the content of each that the other process knows, None for none
        self.numbers: dict[int, int] = {}
        self.changed = changed

    def number(self, value: Any) -> int:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
            self.known.append(None)
        return self.numbers[id(value)]

    def find(self, kind: str, number: int) -> Any:
        if number == len(self.objects):
            self.number(_SHARED[kind]())
        found = self.objects[number]
        if number < 0 or type(found) is not _SHARED[kind]:
            raise BadBytes("another container")
        return found

    def news(self, number: int) -> Any:
        """The content of a container (items, or keys and then values, or bytes), None if the other process knows it."""
        value, known = self.objects[number], self.known[number]
        found = bytes(value) if type(value) is bytearray else (*value, *(value.values() if type(value) is dict else ()))
        if known is not None and len(known) == len(found) and all(map(_operator.is_, known, found)):
            return None
        self.known[number] = found
        return found

    def fill(self, number: int, content: Any) -> None:
        """Give a container its content. `news` is to be called when its records are built."""
        value = self.objects[number]
        self.changed |= self.known[number] is not None
        if type(value) is dict:
            value.clear()
            value.update(zip(content[: len(content) // 2], content[len(content) // 2 :], strict=True))
        elif type(value) is set:
            value.clear()
            value.update(content)
        else:
            value[:] = content

    def forget(self, count: int, known: list[Any]) -> None:
        """Undo an encoding that failed. count, known: of the objects before it."""
        self.numbers = {id(value): number for number, value in enumerate(self.objects[:count])}
        del self.objects[count:]
        self.known = known


class _Pickler(_pickle.Pickler):
    """refer: kind and content of an object that is not a value."""

    def __init__(self, file: Any, refer: Refer | None) -> None:
        super().__init__(file, 5)
        self._refer = refer

    def reducer_override(self, value: Any) -> Any:
        if value is MAKE:
            return NotImplemented
        found = to_plain(value) or (self._refer(value) if self._refer else None)
        if found is None:
            raise NotAValue(f"a {type(value).__name__} is not plain data")
        return MAKE, found


class _SharingPickler(_Pickler):
    def __init__(self, file: Any, refer: Refer | None, shared: Shared) -> None:
        super().__init__(file, refer)
        self._shared = shared

    def persistent_id(self, value: Any) -> Any:
        name = type(value).__name__
        return (name, self._shared.number(value)) if type(value) is _SHARED.get(name) else None


class _Unpickler(_pickle.Unpickler):
    def __init__(self, file: Any, shared: Shared | None) -> None:
        super().__init__(file)
        self._shared, self.records = shared, False

    def find_class(self, module: str, name: str) -> Any:
        if name != "MAKE":
            raise BadBytes(f"{module}.{name} is not a value")
        self.records = True
        return MAKE

    def persistent_load(self, number: Any) -> Any:
        if self._shared is None:
            raise BadBytes("a reference to nothing")
        return self._shared.find(*number)


def encode(value: Any, refer: Refer | None = None, shared: Shared | None = None) -> bytes:
    """The value as bytes. refer: kind and content of an object that is not a value. shared: containers that the
    receiver also has. Raises NotAValue."""
    file = io.BytesIO()
    pickler = _Pickler(file, refer) if shared is None else _SharingPickler(file, refer, shared)
    before = (len(shared.objects), shared.known[:]) if shared is not None else None
    try:
        pickler.dump(value)
        number = 0
        while shared is not None and number < len(shared.objects):
            if (news := shared.news(number)) is not None:
                pickler.dump((number, news))
            number += 1
    except (RecursionError, NotAValue) as error:
        if shared is not None and before is not None:
            shared.forget(*before)
        raise NotAValue("nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    return file.getvalue()


def decode(data: bytes, resolve: Resolve | None = None, shared: Shared | None = None) -> Any:
    """The encoded value. resolve: gives the object of a kind and content that are not plain data. Raises BadBytes."""
    file = io.BytesIO(data)
    unpickler = _Unpickler(file, shared)
    try:
        value, news = unpickler.load(), []
        while shared is not None and file.tell() < len(data):
            news.append(unpickler.load())
        if file.tell() != len(data) or min((number for number, _ in news), default=0) < 0:
            raise BadBytes("bytes after the value")
        for number, content in news:
            shared.fill(number, content)  # type: ignore[union-attr]
        if unpickler.records:
            builder = _Builder(resolve)
            value = builder.built(value)
            for number, _ in news:
                builder.built(shared.objects[number])  # type: ignore[union-attr]
        for number, _ in news:
            shared.news(number)  # type: ignore[union-attr]
        return value
    except BadBytes:
        raise
    except Exception as error:  # whatever malformed bytes or a constructor raise
        raise BadBytes(f"{type(error).__name__}: {error}") from error


class _Builder:
    """Replaces records by the values they stand for."""

    def __init__(self, resolve: Resolve | None) -> None:
        self.resolve = resolve
        self.done: dict[int, tuple[Any, Any]] = {}  # by id: the object, which must stay alive, and its replacement

    def built(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if id(value) in self.done:
            return self.done[id(value)][1]
        self.done[id(value)] = (value, value)
        if kind is list:
            if not set(map(type, value)) <= _ATOMS:
                value[:] = [self.built(item) for item in value]
        elif kind in (dict, set):
            items = [self.built(item) for item in (value.items() if kind is dict else value)]
            value.clear()
            value.update(items)
        elif kind in (tuple, frozenset):
            self.done[id(value)] = value, kind(self.built(item) for item in value)
        elif kind is Record:
            self.done[id(value)] = value, self.record(value)
        return self.done[id(value)][1]

    def record(self, record: Any) -> Any:
        content = self.built(record.content)
        found = from_plain(record.kind, content)
        if found is not NotImplemented:
            return found
        if self.resolve is None:
            raise BadBytes(f"unknown kind {record.kind!r}")
        return self.resolve(record.kind, content)


def send(fd: int, data: bytes) -> None:
    """Write one frame: a 4-byte length, then the data. Raises NotAValue above MAX_FRAME bytes."""
    if len(data) > MAX_FRAME:
        raise NotAValue("larger than a frame may be")
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> bytes | None:
    """The next frame, or None if the pipe is closed or the frame is too long."""
    head = _exactly(fd, 4)
    length = int.from_bytes(head or b"", "big")
    return None if head is None or length > MAX_FRAME else _exactly(fd, length)


def _exactly(fd: int, count: int) -> bytes | None:
    pieces = []
    while count:
        piece = os.read(fd, min(count, 2**20))
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
