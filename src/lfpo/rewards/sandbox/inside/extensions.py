"""Types of plain data besides the built-in ones: how they are sent as built-in values, and built from them again.

The set is closed: an untrusted sender can create instances of these types only. Most are sent as their own pickling
describes them; for one of those, a name in `_REDUCED` is enough. Others have a function to built-in values and one back
in `_TYPES`. The second may raise ArithmeticError, AttributeError, LookupError, MemoryError, TypeError or ValueError.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BUILT_IN_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (int, float, str, bool, list, dict, set, tuple, bytes, bytearray, complex, frozenset, range, object)
} | {"type": type, "NoneType": type(None)}
_REDUCED = {
    *("builtins.bytearray", "builtins.range", "builtins.slice", "fractions.Fraction", "decimal.Decimal"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("collections.deque", "collections.Counter", "collections.OrderedDict", "collections.defaultdict"),
    *("pathlib.PosixPath", "pathlib.PurePosixPath"),
    *("ipaddress.IPv4Address", "ipaddress.IPv6Address", "ipaddress.IPv4Network", "ipaddress.IPv6Network"),
}
_ARRAY_KINDS = "biufcmMSU"
empty_type: Any = None
"""Type of the empty arrays that are built; None: numpy's own. The judge sets a stricter one (compare.py)."""
_EXTENSION_DTYPES = {"str", "string", "boolean", "Float32", "Float64"}
_EXTENSION_DTYPES |= {f"{sign}Int{size}" for sign in ("", "U") for size in (8, 16, 32, 64)}


def to_plain(value: Any) -> tuple[str, Any] | None:
    """Name and built-in values of an instance of one of the types, None for anything else."""
    kind = type(value)
    if isinstance(value, type):
        return ("type", value.__name__) if _BUILT_IN_TYPES.get(value.__name__) is value else None
    for package, convert in (("numpy", _numpy_to_plain), ("pandas", _pandas_to_plain)):
        if kind.__module__.partition(".")[0] == package and (module := sys.modules.get(package)):
            return convert(module, value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if (name in _REDUCED or name in _TYPES) and _is_this_type(kind):
        return name, _reduced(value) if name in _REDUCED else _TYPES[name][0](value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__eq__ is tuple.__eq__:
        return "namedtuple", (kind.__name__, list(kind._fields), list(tuple.__iter__(value)))
    return None


def _is_this_type(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "builtins" or getattr(module, kind.__qualname__, None) is kind


def from_plain(plain: Any) -> Any:
    """The instance. Raises LookupError for a type that is not in the set."""
    name, content = plain
    if name not in _REDUCED:
        return _TYPES[name][1](content)
    module, _, kind = name.partition(".")
    arguments, items, pairs = content
    value = getattr(_module(module), kind)(*arguments)
    if items:
        value.extend(items)
    for key, item in pairs:
        value[key] = item
    return value


def _reduced(value: Any) -> tuple[Any, list[Any], list[Any]]:
    """Arguments of the type's constructor, items and pairs. A time zone of another library becomes its offset."""
    zone = getattr(value, "tzinfo", None)
    if zone is not None and to_plain(zone) is None:
        datetime, offset = _module("datetime"), value.utcoffset()
        value = value.replace(tzinfo=None if offset is None else datetime.timezone(offset))
    _, arguments, _, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
    return arguments, list(items or ()), list(pairs or ())


def _module(name: str) -> Any:
    __import__(name)  # importlib and functools would take longer to import than most jobs
    return sys.modules[name]


_NAMEDTUPLES: dict[Any, Any] = {}


def refuse_callables(values: Any) -> None:
    """Raises ValueError for a function or type among the values, which are or may be attributes of an instance.

    A test would take it for a method of the data that it expects.
    """
    if any(map(callable, values)):
        raise ValueError("a function hides a method")


def _namespace(state: dict[str, Any]) -> Any:
    refuse_callables(state.values())
    return _module("types").SimpleNamespace(**state)


def _stream(kind: str, content: Any, position: int) -> Any:
    stream = getattr(_module("io"), kind)(content)
    stream.seek(position)
    return stream


def _random(state: Any) -> Any:
    made = _module("random").Random()
    made.setstate(state)
    return made


def _match(pattern: Any, text: Any, begin: int, end: int, spans: Any) -> Any:
    """The match of a pattern. Raises ValueError if the pattern gives other spans."""
    for search in (pattern.match, pattern.fullmatch, pattern.search):
        found = search(text, begin, end)
        if found is not None and found.regs == spans:
            return found
    for found in pattern.finditer(text, begin, end):
        if found.regs == spans:
            return found
    raise ValueError("the pattern has no such match")


def _namedtuple(parts: Any) -> Any:
    name, fields, values = parts
    if any(map(callable, values)):
        return tuple(values)
    key = (str(name), *map(str, fields))
    if key not in _NAMEDTUPLES:
        _NAMEDTUPLES[key] = _module("collections").namedtuple(key[0], key[1:])
    return _NAMEDTUPLES[key](*values)


# Name of the type: (to built-in values, from built-in values)
_TYPES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "type": (lambda v: v.__name__, lambda p: _BUILT_IN_TYPES[p]),
    "builtins.ellipsis": (lambda v: None, lambda p: ...),
    "builtins.dict_keys": (list, lambda p: dict.fromkeys(p).keys()),
    "builtins.dict_values": (list, lambda p: dict(enumerate(p)).values()),
    "builtins.dict_items": (list, lambda p: dict(p).items()),
    "builtins.memoryview": (bytes, lambda p: memoryview(p)),
    "builtins.mappingproxy": (dict, lambda p: _module("types").MappingProxyType(p)),
    "types.SimpleNamespace": (vars, _namespace),
    "collections.ChainMap": (lambda v: v.maps, lambda p: _module("collections").ChainMap(*p)),
    "collections.UserDict": (lambda v: v.data, lambda p: _module("collections").UserDict(p)),
    "collections.UserList": (lambda v: v.data, lambda p: _module("collections").UserList(p)),
    "_io.StringIO": (lambda v: (v.getvalue(), v.tell()), lambda p: _stream("StringIO", *p)),
    "_io.BytesIO": (lambda v: (v.getvalue(), v.tell()), lambda p: _stream("BytesIO", *p)),
    "re.Pattern": (lambda v: (v.pattern, v.flags), lambda p: _module("re").compile(*p)),
    "re.Match": (lambda v: (v.re, v.string, v.pos, v.endpos, v.regs), lambda p: _match(*p)),
    "array.array": (lambda v: (v.typecode, list(v)), lambda p: _module("array").array(*p)),
    "uuid.UUID": (str, lambda p: _module("uuid").UUID(p)),
    "zoneinfo.ZoneInfo": (lambda v: v.key, lambda p: _module("zoneinfo").ZoneInfo(p)),
    "random.Random": (lambda v: v.getstate(), lambda p: _random(p)),
    "namedtuple": (list, _namedtuple),
    "numpy.ndarray": (list, lambda p: _array(*p)),
    "numpy.generic": (list, lambda p: _array(*p)[()]),
    "pandas.Series": (list, lambda p: _series(*p)),
    "pandas.Index": (list, lambda p: _index(*p)),
    "pandas.RangeIndex": (list, lambda p: _module("pandas").RangeIndex(*p[:3], name=p[3])),
    "pandas.MultiIndex": (list, lambda p: _module("pandas").MultiIndex.from_arrays(p[0], names=p[1])),
    "pandas.DataFrame": (list, lambda p: _frame(*p)),
    "pandas.Categorical": (list, lambda p: _module("pandas").Categorical.from_codes(p[0], p[1], ordered=bool(p[2]))),
    "pandas.array": (list, lambda p: _extension_array(*p)),
    "pandas.Timestamp": (list, lambda p: _module("pandas").Timestamp(p[0]).as_unit(p[1])),
    "pandas.Timedelta": (list, lambda p: _module("pandas").Timedelta(p[0], unit="ns").as_unit(p[1])),
    "pandas.NaT": (list, lambda p: _module("pandas").NaT),
    "pandas.NA": (list, lambda p: _module("pandas").NA),
}


def _numpy_to_plain(numpy: Any, value: Any) -> tuple[str, Any] | None:
    """An array or a number of numpy. Subclasses, such as matrix, are refused."""
    is_array = type(value) is numpy.ndarray or type(value) is empty_type
    if not is_array and not isinstance(value, numpy.generic):
        return None
    array = numpy.asarray(value)
    if array.dtype.kind == "O":
        content: Any = list(array.flat)
    elif array.dtype.kind in _ARRAY_KINDS:
        content = array.tobytes()
    else:
        return None
    return "numpy.ndarray" if is_array else "numpy.generic", (array.dtype.str, list(array.shape), content)


def _array(dtype: str, shape: list[int], content: Any) -> Any:
    numpy = _module("numpy")
    kind = numpy.dtype(str(dtype)).kind
    if kind == "O":
        result = numpy.empty(len(content), dtype=object)
        for number, item in enumerate(content):
            result[number] = item
        return result.reshape(shape)
    if kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of {dtype} are not plain data")
    array = numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()
    return array.view(empty_type or numpy.ndarray) if array.size == 0 else array


def _pandas_to_plain(pandas: Any, value: Any) -> tuple[str, Any] | None:
    kind = type(value)
    if value is pandas.NaT or value is pandas.NA:
        return "pandas.NaT" if value is pandas.NaT else "pandas.NA", None
    if kind is pandas.Timestamp and value.tzinfo is None:
        return "pandas.Timestamp", (value.isoformat(), value.unit)
    if kind is pandas.Timedelta:
        return "pandas.Timedelta", (value.as_unit("ns").value, value.unit)
    if kind is pandas.DataFrame:
        columns = [_values(value.iloc[:, number].array) for number in range(value.shape[1])]
        return "pandas.DataFrame", (value.columns, value.index, columns)
    if kind is pandas.Series:
        return "pandas.Series", (_values(value.array), value.index, value.name)
    if kind is pandas.RangeIndex:
        return "pandas.RangeIndex", (value.start, value.stop, value.step, value.name)
    if kind is pandas.MultiIndex:
        levels = [value.get_level_values(number) for number in range(value.nlevels)]
        return "pandas.MultiIndex", (levels, list(value.names))
    if isinstance(value, pandas.Index):
        return "pandas.Index", (_values(value.array), value.name)
    if kind is pandas.Categorical:
        return "pandas.Categorical", (value.codes.tolist(), value.categories, bool(value.ordered))
    if isinstance(value, pandas.api.extensions.ExtensionArray) and str(value.dtype) in _EXTENSION_DTYPES:
        missing = value.isna()
        items = [None if gone else item for item, gone in zip(value.tolist(), missing, strict=True)]
        return "pandas.array", (str(value.dtype), items)
    return None


def _values(column: Any) -> Any:
    """A column as an array of numpy where it is one, else as pandas' own array."""
    in_numpy = type(column).__name__ in {"NumpyExtensionArray", "PandasArray", "DatetimeArray", "TimedeltaArray"}
    return column.to_numpy() if in_numpy and getattr(column, "tz", None) is None else column


def _extension_array(dtype: str, items: list[Any]) -> Any:
    if dtype not in _EXTENSION_DTYPES:
        raise ValueError(f"columns of {dtype} are not plain data")
    return _module("pandas").array(items, dtype=dtype)


def _labels(make: Any, values: Any, **options: Any) -> Any:
    """An index or a series. pandas would infer another type from an array of objects."""
    objects = type(values).__name__ == "ndarray" and values.dtype.kind == "O"
    return make(values, dtype=object if objects else None, **options)


def _index(values: Any, name: Any) -> Any:
    return _labels(_module("pandas").Index, values, name=name)


def _series(values: Any, index: Any, name: Any) -> Any:
    if values.dtype.kind == "O":
        refuse_callables(values)  # a label is an attribute too
    if type(values) is empty_type:
        values = _module("numpy").asarray(values)
    return _labels(_module("pandas").Series, values, index=index, name=name)


def _frame(columns: Any, index: Any, values: list[Any]) -> Any:
    frame = _module("pandas").DataFrame({n: _series(column, index, None) for n, column in enumerate(values)}, index)
    frame.columns = columns
    return frame
