"""The wire format: values encoded as bytes, and frames of bytes on a pipe.

Decoding runs no code of the sender: it creates instances of built-in types and of the types in extensions.py, so that
bytes from an untrusted process are safe to decode; marshal and pickle are not. Types are exact: 1, 1.0 and True stay
different. An instance of a subclass is sent as its built-in base if the class keeps the base's `__eq__`. Anything else
is not a value; the caller may send a reference, a kind with a payload, in its place.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[Any], tuple[str, Any] | None]  # kind and payload of an object that is not a value, or None
    Resolve = Callable[[str, Any], Any]  # the object of a kind and a payload

MAX_DEPTH = 1000
MAX_FRAME = 2**30

_LENGTH = struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_COMPLEX = struct.Struct(">dd")
_BASES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_SEQUENCES: dict[type, bytes] = {list: b"L", tuple: b"U", set: b"S", frozenset: b"Z"}
_BUILDERS: dict[bytes, Any] = {tag: kind for kind, tag in _SEQUENCES.items()}
_CONSTANTS: dict[bytes, bool | None] = {b"N": None, b"T": True, b"F": False}
BY_REFERENCE: set[type] = set()
"""Classes whose instances are references, also if they have a built-in base."""
_PACK_ABOVE = 4  # a longer list of numbers is sent as arrays


class NotAValue(Exception):
    """The object, or something in it, cannot be sent, or is nested too deeply."""


class Proxy:
    """Base of what stands for an object of the other process. It is sent as a reference."""

    __slots__ = ()


class BadBytes(Exception):
    """The bytes are not an encoded value."""


def encode(value: Any, refer: Refer | None = None) -> bytes:
    """The value as bytes. refer: gives kind and payload of an object that is not a value. Raises NotAValue."""
    parts: list[bytes] = []
    try:
        _write(value, parts, 0, refer)
    except RecursionError:
        raise NotAValue("nested too deeply") from None
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], depth: int, refer: Refer | None) -> None:
    if depth > MAX_DEPTH:
        raise NotAValue("nested too deeply")
    kind = type(value)
    if value is None or kind is bool:
        parts.append(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        _sized(b"I", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True), parts)
    elif kind is float:
        parts.append(b"D" + _DOUBLE.pack(value))
    elif kind is str:
        _sized(b"s", value.encode("utf-8", "surrogatepass"), parts)
    elif kind in _SEQUENCES:
        parts.append(_SEQUENCES[kind])
        _write_items(value, parts, depth + 1, refer)
    elif kind is dict:
        parts.append(b"M")
        _write_items(list(value), parts, depth + 1, refer)
        _write_items(list(value.values()), parts, depth + 1, refer)
    elif kind is bytes:
        _sized(b"b", value, parts)
    elif kind is complex:
        parts.append(b"C" + _COMPLEX.pack(value.real, value.imag))
    else:
        _write_other(value, parts, depth, refer)


def _write_items(items: Any, parts: list[bytes], depth: int, refer: Refer | None) -> None:
    """The items of a sequence: numbers as two arrays and a mask where possible, else one by one."""
    parts.append(_LENGTH.pack(len(items)))
    if len(items) > _PACK_ABOVE and set(map(type, items)) <= {int, float}:
        try:
            integers = _packed("q", [item for item in items if type(item) is int])
        except struct.error:  # larger than 64 bits
            pass
        else:
            floats = _packed("d", [item for item in items if type(item) is float])
            mixed = bool(integers and floats)
            mask = bytes([type(item) is float for item in items]) if mixed else b""
            parts += (b"m" if mixed else b"d" if floats else b"q", mask, integers, floats)
            return
    parts.append(b"i")
    for item in items:
        _write(item, parts, depth, refer)


def _packed(form: str, numbers: list[Any]) -> bytes:
    return struct.pack(f">{len(numbers)}{form}", *numbers)


def _write_other(value: Any, parts: list[bytes], depth: int, refer: Refer | None) -> None:
    if not isinstance(value, Proxy) and type(value) not in BY_REFERENCE:
        from .extensions import to_plain  # imported here, because most jobs have built-in values only

        if (plain := to_plain(value)) is not None:
            parts.append(b"X")
            _write(plain, parts, depth + 1, refer)
            return
        if _base(value):
            _write(plain_base(value), parts, depth, refer)
            return
    reference = refer(value) if refer else None
    if reference is None:
        raise NotAValue(f"a {type(value).__name__} is not plain data")
    parts.append(b"H")
    _write(reference, parts, depth + 1, refer)


def _base(value: Any) -> Any:
    """The built-in type that the value is an instance of, if its class keeps the `__eq__` of that type."""
    found = (base for base in _BASES if isinstance(value, base) and type(value).__eq__ is base.__eq__)
    return next(found, None)


def plain_base(value: Any) -> Any:
    """The built-in value in an instance of a subclass, without calling methods that the subclass overrides.

    Raises NotAValue if it has none.
    """
    base: Any = _base(value)
    if base is None:
        raise NotAValue(f"a {type(value).__name__} is not plain data")
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
    return base(base.__iter__(value))


def _sized(tag: bytes, body: bytes, parts: list[bytes]) -> None:
    parts += (tag, _LENGTH.pack(len(body)), body)


def decode(data: bytes, resolve: Resolve | None = None, extensions: bool = True) -> Any:
    """The encoded value. resolve: gives the object of a reference. extensions: whether to allow types that are not
    built in. Raises BadBytes."""
    reader = _Reader(data, resolve, extensions)
    try:
        value = reader.value(0)
    except RecursionError:
        raise BadBytes("nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError, struct.error) as error:
        raise BadBytes(str(error)) from error  # types refuse values that do not fit them
    if reader.at != len(data):
        raise BadBytes("bytes after the value")
    return value


class _Reader:
    def __init__(self, data: bytes, resolve: Resolve | None, extensions: bool) -> None:
        self.data, self.at, self.resolve, self.extensions = data, 0, resolve, extensions

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
            items = self.items(depth + 1)
            return items if tag == b"L" else _BUILDERS[tag](items)
        if tag == b"M":
            return dict(zip(self.items(depth + 1), self.items(depth + 1), strict=True))
        if tag == b"b":
            return self.sized()
        if tag == b"C":
            return complex(*_COMPLEX.unpack(self.take(16)))
        if tag == b"X" and self.extensions:
            from .extensions import from_plain

            return from_plain(self.value(depth + 1))
        if tag == b"H" and self.resolve:
            kind, payload = self.value(depth + 1)
            return self.resolve(kind, payload)
        raise BadBytes(f"unknown tag {tag!r}")

    def items(self, depth: int) -> list[Any]:
        count, form = self.length(), self.take(1)
        if form == b"i":
            return [self.value(depth) for _ in range(count)]
        if form in b"qd":
            return list(self.packed(form.decode(), count))
        if form != b"m":
            raise BadBytes(f"unknown form {form!r}")
        mask = self.take(count)
        if mask.count(0) + mask.count(1) != count:
            raise BadBytes("a mask of other bytes than 0 and 1")
        integers = iter(self.packed("q", mask.count(0)))
        floats = iter(self.packed("d", mask.count(1)))
        return [next(floats) if is_float else next(integers) for is_float in mask]

    def packed(self, form: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f">{count}{form}", self.take(8 * count))

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
