"""Values between processes: pickles of built-in values only, and records that stand for everything else.

Unpickling creates built-in containers, numbers, texts and records, and calls nothing of the sender's choice: the only
global is MAKE, which makes a record, and neither a record nor MAKE can be called, changed or filled by another opcode.
Afterwards the records become values by a closed table of pure constructors. References to one object stay references
to one object.
"""

from __future__ import annotations

import _functools  # type: ignore[import-not-found]
import io
import os
import sys
import types

_stub: Any = types.ModuleType("functools")  # _pickle needs partial only; the import of functools takes 4 ms
_stub.partial = _functools.partial
_missing = "functools" not in sys.modules
if _missing:
    sys.modules["functools"] = _stub
import _pickle  # noqa: E402

if _missing:
    del sys.modules["functools"]

from .plain_base import NotAValue  # noqa: E402

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[Any], tuple[str, Any] | None]  # kind and content of an object that is not a value, or None
    Resolve = Callable[[str, Any], Any]  # the object of a kind and content

MAX_FRAME = 2**28
MAX_SHARED = 10_000
MAX_SHARED_BYTES = 2**16
"""Containers that two processes share, and bytes of the last message, before they start anew: a message has all."""
_ATOMS = {int, float, str, bytes, bool, type(None)}
_SHARED: dict[str, Any] = {"list": list, "dict": dict, "set": set, "bytearray": bytearray}


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
    """Mutable containers that two processes both hold. A message between them has the content of all."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.changed = False

    def number(self, value: Any) -> int:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def find(self, kind: str, number: int) -> Any:
        if number == len(self.objects):
            self.number(_SHARED[kind]())
        found = self.objects[number]
        if number < 0 or type(found) is not _SHARED[kind]:
            raise BadBytes("another container")
        return found

    def fill(self, number: int, content: Any, is_old: bool) -> None:
        """Give a container its content: items, pairs of a dict, or bytes. Notes whether an old one has changed."""
        value = self.objects[number]
        if is_old and not self.changed:
            before = _content(value)
            self.changed = len(before) != len(content) or any(
                a is not b and (type(a) is not type(b) or type(a) not in {*_ATOMS, tuple} or a != b)
                for a, b in zip(before, content, strict=True)
            )
        if type(value) in (dict, set):
            value.clear()
            value.update(content)
        else:
            value[:] = content


def _content(value: Any) -> Any:
    if type(value) is bytearray:
        return bytes(value)
    return tuple(value.items()) if type(value) is dict else tuple(value)


class _Pickler(_pickle.Pickler):
    """refer: kind and content of an object that is not a value."""

    def __init__(self, file: Any, refer: Refer | None) -> None:
        super().__init__(file, 5)
        self._refer = refer

    def reducer_override(self, value: Any) -> Any:
        if value is MAKE:
            return NotImplemented
        from .plain_types import to_plain  # imported here, because most values are built in

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
    try:
        pickler.dump(value)
        number = 0
        while shared is not None and number < len(shared.objects):
            pickler.dump(_content(shared.objects[number]))
            number += 1
    except RecursionError:
        raise NotAValue("nested too deeply") from None
    return file.getvalue()


def decode(data: bytes, resolve: Resolve | None = None, shared: Shared | None = None) -> Any:
    """The encoded value. resolve: gives the object of a kind and content that are not plain data. Raises BadBytes."""
    file = io.BytesIO(data)
    unpickler = _Unpickler(file, shared)
    old = len(shared.objects) if shared is not None else 0
    try:
        parts = [unpickler.load()]
        while shared is not None and len(parts) <= len(shared.objects):
            parts.append(unpickler.load())
        if file.tell() != len(data):
            raise BadBytes("bytes after the value")
        for number, content in enumerate(parts[1:]):
            assert shared is not None
            shared.fill(number, content, number < old)
        if unpickler.records:
            parts = _Builder(resolve).built([parts[0], shared and shared.objects[:]])
    except BadBytes:
        raise
    except Exception as error:  # whatever malformed bytes or a constructor raise
        raise BadBytes(f"{type(error).__name__}: {error}") from error
    return parts[0]


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
        elif kind is dict:
            items = [(self.built(key), self.built(item)) for key, item in value.items()]
            value.clear()
            value.update(items)
        elif kind is set:
            items = [self.built(item) for item in value]
            value.clear()
            value.update(items)
        elif kind in (tuple, frozenset):
            self.done[id(value)] = value, kind(self.built(item) for item in value)
        elif kind is Record:
            self.done[id(value)] = value, self.record(value)
        return self.done[id(value)][1]

    def record(self, record: Any) -> Any:
        from .plain_types import from_plain

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
