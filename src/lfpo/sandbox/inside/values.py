"""Values between processes: pickles of built-in values only, and records that stand for the few other types of data.

Unpickling creates built-in containers, numbers, texts and records, and calls nothing of the sender's choice: the only
global is Record, which no other opcode can change or fill. Afterwards the records become values by a closed table of
constructors. These are pure: they open nothing and import only their own modules. References to one object stay
references to one object.
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

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

MAX_FRAME = 2**28
_ATOMS = {int, float, str, bytes, bytearray, bool, type(None)}
_BASES: tuple[type, ...] = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_REDUCED = {
    *("builtins.range", "builtins.complex", "fractions.Fraction", "decimal.Decimal"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("collections.deque", "collections.Counter", "collections.OrderedDict"),
}
"""Types that are made from the arguments, items and pairs of their own pickling."""
_ARRAY_KINDS = "biufcmMSU"


class NotAValue(TypeError):
    """The object, or something in it, cannot be sent."""


class BadBytes(Exception):
    """The bytes are not an encoded value."""


class NoElements(Exception):
    """An answer holds an array without elements, which numpy's broadcasting finds equal to everything."""


class EmptyList(list):
    """A list without elements that equals other empty lists, but which numpy does not take for an array."""

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise TypeError("the program returned nothing, which numpy would find equal to anything")


class EmptyTuple(tuple):
    """The same for a tuple."""

    __array__ = EmptyList.__array__


class Record:
    """Stands for a value that is not of a built-in type, until it is built."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: str, content: object) -> None:
        self.kind, self.content = kind, content

    def __setstate__(self, state: object) -> None:
        raise BadBytes("a record cannot be changed")


class _Pickler(_pickle.Pickler):
    def __init__(self, file: io.BytesIO, lessens: bool) -> None:
        super().__init__(file, 5)
        self._lessens = lessens

    def reducer_override(self, value: object) -> Any:
        if value is Record:
            return NotImplemented
        if record := _record_of(value):
            return Record, record
        # An instance of a subclass is data only as one of its built-in base, without what its class defines.
        base = next((b for b in _BASES if isinstance(value, b)), None) if self._lessens else None
        if base is None:
            raise NotAValue(f"a {type(value).__name__} is not plain data")
        return Record, ("base", str.__str__(value) if base is str else base(value))


class _Unpickler(_pickle.Unpickler):
    records = False

    def find_class(self, module: str, name: str) -> object:
        if name != "Record":
            raise BadBytes(f"{module}.{name} is not a value")
        self.records = True
        return Record


def encode(value: object, lessens: bool = False) -> bytes:
    """The value as bytes. lessens: whether an instance of a subclass of a built-in type is sent as one of its base.
    Raises NotAValue."""
    file = io.BytesIO()
    try:
        _Pickler(file, lessens).dump(value)
    except RecursionError:
        raise NotAValue("nested too deeply") from None
    return file.getvalue()


def decode(data: bytes, guards: bool = False) -> Any:
    """The encoded value. guards: whether emptiness in it must not reach numpy, which broadcasts it to any shape: then
    empty lists and tuples become EmptyList and EmptyTuple. Raises BadBytes, and NoElements for an array that is empty.
    """
    file = io.BytesIO(data)
    unpickler = _Unpickler(file)
    try:
        value = unpickler.load()
        if file.tell() != len(data):
            raise BadBytes("bytes after the value")
        return _built(value, guards, {}) if unpickler.records or guards else value
    except (BadBytes, NoElements):
        raise
    except Exception as error:  # whatever malformed bytes or a constructor raise
        raise BadBytes(f"{type(error).__name__}: {error}") from error


def _built(value: Any, guards: bool, done: dict[int, tuple[object, object]]) -> object:
    """The value with what its records stand for. done: by id, objects, kept alive, and what replaces them."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in done:
        return done[id(value)][1]
    done[id(value)] = value, value
    if kind is Record:
        new = _made(value.kind, _built(value.content, guards, done), guards)
    elif kind in (list, tuple) and not value and guards:
        new = EmptyList() if kind is list else EmptyTuple()
    elif kind in (list, tuple, set, frozenset, dict):
        items = [_built(item, guards, done) for item in (value.items() if kind is dict else value)]
        if kind is list:
            value[:] = items
        elif kind in (set, dict):
            value.clear()
            value.update(items)
        new = kind(items) if kind in (tuple, frozenset) else value
    else:
        raise BadBytes(f"a {kind.__name__} is not a value")
    done[id(value)] = value, new
    return new


def _made(kind: str, content: Any, guards: bool) -> object:
    """What a record stands for."""
    if kind == "base":
        return content
    if kind in ("numpy.ndarray", "numpy.generic"):
        dtype, shape, data = content
        if _named("numpy.dtype")(str(dtype)).kind not in _ARRAY_KINDS:
            raise ValueError(f"arrays of {dtype} are not plain data")
        array = _named("numpy.frombuffer")(data, dtype=dtype).reshape(tuple(shape)).copy()
        if guards and array.size == 0:
            raise NoElements("the program returned an array without elements")
        return array if kind == "numpy.ndarray" else array[()]
    if kind not in _REDUCED:
        raise BadBytes(f"unknown kind {kind!r}")
    arguments, items, pairs = content
    value = _named(kind)(*arguments)
    if items:
        value.extend(items)
    for key, item in pairs:
        value[key] = item
    if guards and kind in ("builtins.range", "collections.deque") and not value:
        raise NoElements(f"the program returned an empty {kind}")
    return value


def _record_of(value: Any) -> tuple[str, object] | None:
    """Kind and built-in content of an instance of one of the types, None for anything else.

    Arrays of objects, and subclasses of arrays such as matrix, are not plain data.
    """
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__ == "numpy":
        numpy = sys.modules["numpy"]
        is_array = kind is numpy.ndarray
        if (is_array or isinstance(value, numpy.generic)) and value.dtype.kind in _ARRAY_KINDS:
            return f"numpy.{'ndarray' if is_array else 'generic'}", (value.dtype.str, value.shape, value.tobytes())
    elif name in _REDUCED and getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind:
        _, arguments, _, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
        return name, (arguments[kind is complex :], tuple(items or ()), tuple(pairs or ()))
    return None


def _named(name: str) -> Any:
    """The object of a dotted name. importlib would take longer to import than most jobs."""
    module, _, member = name.rpartition(".")
    __import__(module)
    return getattr(sys.modules[module], member)


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
