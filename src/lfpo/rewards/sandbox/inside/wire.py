"""The wire format: built-in values encoded as bytes, and frames of bytes on a pipe.

Decoding runs no code and creates built-in values only, so that bytes from an untrusted process are safe to decode;
marshal and pickle are not. Types are exact: 1, 1.0 and True stay different. An instance of a subclass is sent as its
built-in base if the class keeps the base's `__eq__` (a namedtuple, a defaultdict), and a numpy scalar as a Python
number. Anything else is not a value; the caller may send a handle, an integer, in its place.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Opaque = Callable[[Any], int | None]  # the handle of an object that is not a value, or None

MAX_DEPTH = 120
MAX_FRAME = 32 * 2**20

_LENGTH = struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_COMPLEX = struct.Struct(">dd")
_BASES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_SEQUENCES: dict[type, bytes] = {list: b"L", tuple: b"U", set: b"S", frozenset: b"Z"}
_BUILDERS: dict[bytes, Callable[[list[Any]], Any]] = {b"L": list, b"U": tuple, b"S": set, b"Z": frozenset}
_CONSTANTS: dict[bytes, bool | None] = {b"N": None, b"T": True, b"F": False}


class NotAValue(Exception):
    """The object, or something in it, is not a built-in value, or is nested too deeply."""


class BadBytes(Exception):
    """The bytes are not an encoded value."""


def encode(value: Any, opaque: Opaque | None = None) -> bytes:
    """The value as bytes. opaque: gives the handle of an object that is not a value. Raises NotAValue."""
    parts: list[bytes] = []
    _write(value, parts, 0, opaque)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], depth: int, opaque: Opaque | None) -> None:
    if depth > MAX_DEPTH:
        raise NotAValue("nested too deeply")
    kind = type(value)
    if value is None or kind is bool:
        parts.append(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        _sized(b"I", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True), parts)
    elif kind is float:
        parts.append(b"D" + _DOUBLE.pack(value))
    elif kind is complex:
        parts.append(b"C" + _COMPLEX.pack(value.real, value.imag))
    elif kind is str:
        _sized(b"s", value.encode("utf-8", "surrogatepass"), parts)
    elif kind is bytes:
        _sized(b"b", value, parts)
    elif kind in _SEQUENCES:
        parts.append(_SEQUENCES[kind] + _LENGTH.pack(len(value)))
        for item in value:
            _write(item, parts, depth + 1, opaque)
    elif kind is dict:
        parts.append(b"M" + _LENGTH.pack(len(value)))
        for key, item in value.items():
            _write(key, parts, depth + 1, opaque)
            _write(item, parts, depth + 1, opaque)
    else:
        _write_other(value, parts, depth, opaque)


def _write_other(value: Any, parts: list[bytes], depth: int, opaque: Opaque | None) -> None:
    for base in _BASES:
        if isinstance(value, base) and _equal_like(type(value), base):
            _write(_as_base(value, base), parts, depth, opaque)
            return
    if (number := _plain_number(value)) is not None:
        _write(number, parts, depth, opaque)
        return
    handle = opaque(value) if opaque else None
    if handle is None:
        raise NotAValue(f"a {type(value).__name__} is not a built-in value")
    parts.append(b"H" + _LENGTH.pack(handle))


def _equal_like(kind: type, base: type) -> bool:
    """Whether instances compare like those of the base. Counter and OrderedDict count too: they do so nearly."""
    standard = kind.__module__ == "collections" and kind.__name__ in {"Counter", "OrderedDict"}
    return kind.__eq__ is base.__eq__ or standard


def _plain_number(value: Any) -> Any:
    """A numpy scalar as a Python number; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value).__module__ != "numpy" or not isinstance(value, numpy.generic):
        return None
    number = value.item()
    return number if type(number) in (bool, int, float, complex) else None


def _as_base(value: Any, base: type) -> Any:
    """The built-in value in an instance of a subclass, without calling methods that the subclass overrides."""
    if base is int:
        return int.__index__(value) + 0
    if base is float:
        return float.__float__(value)
    if base is complex:
        return complex(value.real, value.imag)
    if base is str:
        return str.__str__(value)[:]
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))  # type: ignore[attr-defined]


def _sized(tag: bytes, body: bytes, parts: list[bytes]) -> None:
    parts += (tag, _LENGTH.pack(len(body)), body)


def decode(data: bytes, resolve: Callable[[int], Any] | None = None) -> Any:
    """The encoded value. resolve: gives the object of a handle. Raises BadBytes."""
    reader = _Reader(data, resolve)
    try:
        value = reader.value(0)
    except (struct.error, UnicodeDecodeError, TypeError, IndexError, OverflowError) as error:
        raise BadBytes(str(error)) from error
    if reader.at != len(data):
        raise BadBytes("bytes after the value")
    return value


class _Reader:
    def __init__(self, data: bytes, resolve: Callable[[int], Any] | None) -> None:
        self.data, self.at, self.resolve = data, 0, resolve

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH + 1:
            raise BadBytes("nested too deeply")
        tag = self.take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"I":
            return int.from_bytes(self.sized(), "big", signed=True)
        if tag == b"s":
            return self.sized().decode("utf-8", "surrogatepass")
        if tag == b"D":
            return _DOUBLE.unpack(self.take(8))[0]
        if tag in _BUILDERS:
            return _BUILDERS[tag]([self.value(depth + 1) for _ in range(self.length())])
        if tag == b"M":
            return {self.value(depth + 1): self.value(depth + 1) for _ in range(self.length())}
        if tag == b"b":
            return self.sized()
        if tag == b"C":
            return complex(*_COMPLEX.unpack(self.take(16)))
        if tag == b"H" and self.resolve:
            return self.resolve(self.length())
        raise BadBytes(f"unknown tag {tag!r}")

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            raise BadBytes("cut short")
        self.at += count
        return piece

    def length(self) -> int:
        return int(_LENGTH.unpack(self.take(4))[0])

    def sized(self) -> bytes:
        return self.take(self.length())


def send(fd: int, data: bytes) -> None:
    """Write one frame: a 4-byte length, then the data. Raises NotAValue above MAX_FRAME bytes."""
    if len(data) > MAX_FRAME:
        raise NotAValue("larger than a frame may be")
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> bytes | None:
    """The next frame, or None if the pipe is closed or the frame is too long."""
    head = _exactly(fd, 4)
    if head is None:
        return None
    length = _LENGTH.unpack(head)[0]
    return _exactly(fd, length) if length <= MAX_FRAME else None


def _exactly(fd: int, count: int) -> bytes | None:
    pieces = []
    while count:
        piece = os.read(fd, min(count, 2**20))
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
