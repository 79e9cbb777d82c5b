"""Values between processes: pickles of built-in values only, and records that stand for everything else.

Unpickling creates built-in containers, numbers, texts and records, and calls nothing of the sender's choice: the only
global is Record, which no other opcode can change or fill. Afterwards the records become values by a closed table of
constructors. These are pure: they open nothing and import only their own modules. Attributes that a sender set on an
instance are not sent. References to one object stay references to one object.
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
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[object], tuple[str, object] | None]  # kind and content of an object that is not a value
    Resolve = Callable[[str, Any], object]  # the object of a kind and content

MAX_FRAME = 2**28
_ATOMS = {int, float, str, bytes, bytearray, bool, type(None)}
_BASES: tuple[type, ...] = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_REDUCED = {
    *("builtins.range", "builtins.slice", "builtins.complex", "fractions.Fraction", "decimal.Decimal"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("collections.deque", "collections.Counter", "collections.OrderedDict", "collections.defaultdict"),
    *("pathlib.PosixPath", "pathlib.PurePosixPath"),
}
"""Types that are made from the arguments, items and pairs of their own pickling."""
_CONSTANTS: dict[str, object] = {"Ellipsis": ..., "NotImplemented": NotImplemented}
_ORDINARY = {"__new__", "__init__", "__doc__", "__module__", "__dict__", "__weakref__", "__slots__", "__annotations__"}
_ORDINARY |= {"__match_args__", "__orig_bases__", "__parameters__", "__firstlineno__", "__static_attributes__"}
_ORDINARY |= {"__annotate__", "__annotate_func__", "__annotations_cache__", "__qualname__"}
"""What a class may define and its instances still do all that those of its base do."""
_ZONES = {"builtins.NoneType", "datetime.timezone", "zoneinfo.ZoneInfo"}
_ARRAY_KINDS = "biufcmMSU"


class NotAValue(TypeError):
    """The object, or something in it, cannot be sent."""


class Undecided(TypeError):
    """A failure that leaves the current test without a verdict if the test does not catch it. Only the judge makes it:
    exceptions of the program are of built-in classes."""


class Abandoned(BaseException):
    """No result that tests may use. A BaseException, so that `except Exception` of a test does not catch it."""


class BadBytes(Exception):
    """The bytes are not an encoded value."""


class Record:
    """Stands for a value that is not of a built-in type, until it is built."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: str, content: object) -> None:
        self.kind, self.content = kind, content

    def __setstate__(self, state: object) -> None:
        raise BadBytes("a record cannot be changed")


class _Pickler(_pickle.Pickler):
    def __init__(self, file: io.BytesIO, refer: Refer | None) -> None:
        super().__init__(file, 5)
        self._refer = refer

    def reducer_override(self, value: object) -> Any:
        if value is Record:
            return NotImplemented
        plain = _to_plain(value) or (self._refer(value) if self._refer else base_of(value))
        if plain is None:
            raise NotAValue(f"a {type(value).__name__} is not plain data")
        return Record, plain


class _Unpickler(_pickle.Unpickler):
    records = False

    def find_class(self, module: str, name: str) -> object:
        if name != "Record":
            raise BadBytes(f"{module}.{name} is not a value")
        self.records = True
        return Record


def encode(value: object, refer: Refer | None = None) -> bytes:
    """The value as bytes. refer: kind and content of an object that is not a value. Raises NotAValue."""
    file = io.BytesIO()
    try:
        _Pickler(file, refer).dump(value)
    except RecursionError:
        raise NotAValue("nested too deeply") from None
    return file.getvalue()


def decode(data: bytes, resolve: Resolve | None = None) -> Any:
    """The encoded value. resolve: gives the object of a kind and content that are not plain data. Raises BadBytes."""
    file = io.BytesIO(data)
    unpickler = _Unpickler(file)
    try:
        value = unpickler.load()
        if file.tell() != len(data):
            raise BadBytes("bytes after the value")
        return _built(value, resolve, {}) if unpickler.records else value
    except BadBytes:
        raise
    except Exception as error:  # whatever malformed bytes or a constructor raise
        raise BadBytes(f"{type(error).__name__}: {error}") from error


def _built(value: Any, resolve: Resolve | None, done: dict[int, tuple[object, object]]) -> object:
    """The value with what its records stand for. done: by id, objects, kept alive, and what replaces them."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in done:
        return done[id(value)][1]
    done[id(value)] = value, value
    if kind is Record:
        new = _made(value.kind, _built(value.content, resolve, done), resolve)
    elif kind in (list, tuple, set, frozenset, dict):
        items = [_built(item, resolve, done) for item in (value.items() if kind is dict else value)]
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


def _made(kind: str, content: Any, resolve: Resolve | None) -> object:
    """What a record stands for."""
    if kind in ("base", "changed base"):
        return content if resolve is None else resolve(kind, content)
    if kind == "constant":
        return _CONSTANTS[content]
    if kind in ("numpy.ndarray", "numpy.generic"):
        dtype, shape, data = content
        if named("numpy.dtype")(str(dtype)).kind not in _ARRAY_KINDS:
            raise ValueError(f"arrays of {dtype} are not plain data")
        array = named("numpy.frombuffer")(data, dtype=dtype).reshape(shape).copy()
        return array if kind == "numpy.ndarray" else array[()]
    if kind in _REDUCED:
        arguments, items, pairs = content
        value = named(kind)(*arguments)
        if items:
            value.extend(items)
        for key, item in pairs:
            value[key] = item
        return value
    if resolve is None:
        raise BadBytes(f"unknown kind {kind!r}")
    return resolve(kind, content)


def _to_plain(value: Any) -> tuple[str, object] | None:
    """Kind and built-in content of an instance of one of the types, None for anything else.

    Arrays of objects, and subclasses of arrays such as matrix, are not plain data.
    """
    kind = type(value)
    if kind.__module__ == __name__.replace("values", "link"):  # a handle, which answers no `isinstance`
        return None
    name = f"{kind.__module__}.{kind.__qualname__}"
    if value is ... or value is NotImplemented:
        return "constant", repr(value)
    if kind.__module__ == "numpy":
        numpy = sys.modules["numpy"]
        is_array = kind is numpy.ndarray
        if (is_array or isinstance(value, numpy.generic)) and value.dtype.kind in _ARRAY_KINDS:
            return f"numpy.{'ndarray' if is_array else 'generic'}", (value.dtype.str, value.shape, value.tobytes())
    elif name in _REDUCED and getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind:
        zone = type(getattr(value, "tzinfo", None))
        if f"{zone.__module__}.{zone.__qualname__}" not in _ZONES:  # only its class could say what the time is
            return None
        _, arguments, _, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
        return name, (arguments[kind is complex :], tuple(items or ()), tuple(pairs or ()))
    return None


def base_of(value: object) -> tuple[str, object] | None:
    """The built-in content of an instance of a subclass, which loses what its class defines; "changed base" where the
    class does something in another way."""
    base = next((b for b in _BASES if isinstance(value, b)), None)
    if base is None:
        return None
    classes = type(value).__mro__[: type(value).__mro__.index(base)]
    own = {name for kind in classes for name in vars(kind)} - _ORDINARY
    changes = any(hasattr(base, name) or (name[:2] == "__" == name[-2:]) for name in own)
    return f"{'changed ' * changes}base", str.__str__(value) if base is str else base(value)


def empties(value: Any) -> dict[int, object]:
    """The texts, containers and arrays in a value of plain data that have no elements, by their id."""
    found: dict[int, object] = {}
    todo, seen = [value], set[int]()
    for part in todo:  # grows
        if id(part) in seen:
            continue
        seen.add(id(part))
        kind = type(part)  # not `isinstance`, which would ask a handle
        if issubclass(kind, (list, tuple, set, frozenset, dict)):
            parts = [*part, *part.values()] if issubclass(kind, dict) else part
            todo += [] if {*map(type, parts)} <= _ATOMS else parts
        elif kind not in (str, bytes) and kind.__name__ not in ("ndarray", "Series", "Index", "deque"):
            continue
        # Python has one empty text and one empty tuple: inside a value they say nothing about where they are from.
        if getattr(part, "ndim", 1) and len(part) == 0 and (part is value or kind not in (str, bytes, tuple)):
            found[id(part)] = part
    return found


def named(name: str) -> Any:
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
