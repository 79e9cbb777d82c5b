"""Types of plain data besides the built-in ones: how they become built-in values, and are built from them again.

The set is closed, and its constructors are pure: they open nothing, import only these modules and call nothing that
they are given. Attributes that a sender set on an instance are not sent.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BASES: tuple[Any, ...] = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_REDUCED = {
    *("builtins.range", "builtins.slice", "fractions.Fraction", "decimal.Decimal"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("collections.deque", "collections.Counter", "collections.OrderedDict", "collections.defaultdict"),
    *("pathlib.PosixPath", "pathlib.PurePosixPath"),
}
"""Types that are built from the arguments, items and pairs of their own pickling."""
_ARRAY_KINDS = "biufcmMSU"


class NotAValue(Exception):
    """The object, or something in it, cannot be sent."""


def to_plain(value: Any) -> tuple[str, Any] | None:
    """Kind and built-in content of an instance of one of the types, None for anything else. Raises NotAValue."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package in ("numpy", "pandas"):
        module = sys.modules.get(package)
        to = _numpy_to_plain if package == "numpy" else _pandas_to_plain
        return to(module, value) if module else None
    name = f"{kind.__module__}.{kind.__qualname__}"
    defined = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    if name in _REDUCED and defined is kind:
        return name, _reduced(value)
    if name in _OTHERS and (defined is kind or kind.__module__ == "builtins"):
        return name, _OTHERS[name][0](value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__eq__ is tuple.__eq__:
        return "namedtuple", (kind.__name__, kind._fields, tuple(tuple.__iter__(value)))
    base = next((b for b in _BASES if isinstance(value, b) and kind.__eq__ is b.__eq__), None)
    return None if base is None else ("base", _plain_base(base, value))


def _plain_base(base: Any, value: Any) -> Any:
    """The built-in value in an instance of a subclass that keeps the `__eq__` of its base, without its methods."""
    if base in (int, float, complex):
        return base.__pos__(value)
    if base in (str, bytes):
        return base.__str__(value) if base is str else base.__bytes__(value)
    return dict(dict.items(value)) if base is dict else base(base.__iter__(value))


def from_plain(kind: str, content: Any) -> Any:
    """The instance; NotImplemented for a kind that is not in the set."""
    if kind == "base":
        return content
    if kind in _OTHERS:
        return _OTHERS[kind][1](content)
    if kind not in _REDUCED:
        return NotImplemented
    arguments, items, pairs = content
    value = _named(kind)(*arguments)
    if items:
        value.extend(items)
    for key, item in pairs:
        value[key] = item
    return value


def _reduced(value: Any) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of the type's constructor, items and pairs. A time zone of another library becomes its offset."""
    zone = getattr(value, "tzinfo", None)
    if zone is not None and to_plain(zone) is None:
        offset = value.utcoffset()
        value = value.replace(tzinfo=None if offset is None else _named("datetime.timezone")(offset))
    _, arguments, _, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
    return arguments, tuple(items or ()), tuple(pairs or ())


def _named(name: str) -> Any:
    """The object of a dotted name. importlib would take longer to import than most jobs."""
    module, _, member = name.rpartition(".")
    __import__(module)
    return getattr(sys.modules[module], member)


def _namedtuple(name: str, fields: Any, items: Any) -> Any:
    """A tuple without names if one of them would be a method."""
    return items if any(map(callable, items)) else _named("collections.namedtuple")(name, fields)(*items)


def _stream(kind: str, content: Any, position: int) -> Any:
    stream = _named(kind)(content)
    stream.seek(position)
    return stream


def _random(state: Any) -> Any:
    made = _named("random.Random")()
    made.setstate(state)
    return made


def _generator(name: str, state: Any) -> Any:
    made = _named(f"numpy.random.{({'PCG64', 'MT19937', 'Philox'} & {name}).pop()}")(0)
    made.state = state
    return _named("numpy.random.Generator")(made)


def _numpy_to_plain(numpy: Any, value: Any) -> tuple[str, Any] | None:
    """An array, a number or a generator of random numbers. Subclasses of arrays, such as matrix, are refused."""
    kind = type(value)
    if kind is numpy.random.Generator:
        return "numpy.Generator", (type(value.bit_generator).__name__, value.bit_generator.state)
    if kind is not numpy.ndarray and not isinstance(value, numpy.generic):
        return None
    array = numpy.asarray(value)
    if array.dtype.kind not in _ARRAY_KINDS + "O":
        return None
    content = tuple(array.flat) if array.dtype.kind == "O" else array.tobytes()
    return "numpy.ndarray" if kind is numpy.ndarray else "numpy.generic", (array.dtype.str, array.shape, content)


def _array(dtype: str, shape: Any, content: Any) -> Any:
    numpy = _named("numpy.ndarray")
    kind = _named("numpy.dtype")(str(dtype)).kind
    if kind == "O":
        if any(map(callable, content)):
            raise ValueError("a function in an array")  # by its label it would be a method of a series
        result = numpy(len(content), dtype=object)
        result[:] = content
        return result.reshape(shape)
    if kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of {dtype} are not plain data")
    return _named("numpy.frombuffer")(content, dtype=dtype).reshape(shape).copy()


def _pandas_to_plain(pandas: Any, value: Any) -> tuple[str, Any] | None:
    kind = type(value)
    if value is pandas.NaT or value is pandas.NA:
        return "pandas.missing", "NaT" if value is pandas.NaT else "NA"
    if kind is pandas.Timestamp:
        return "pandas.Timestamp", (value.isoformat(), value.unit, None if value.tz is None else str(value.tz))
    if kind is pandas.Timedelta:
        return "pandas.Timedelta", (value.as_unit("ns").value, value.unit)
    if kind is pandas.DataFrame:
        columns = tuple(_column(pandas, value.iloc[:, number].array) for number in range(value.shape[1]))
        return "pandas.DataFrame", (value.columns, value.index, columns)
    if kind is pandas.Series:
        return "pandas.Series", (_column(pandas, value.array), value.index, value.name)
    if kind is pandas.RangeIndex:
        return "pandas.RangeIndex", (value.start, value.stop, value.step, value.name)
    if kind is pandas.MultiIndex:
        levels = tuple(value.get_level_values(number) for number in range(value.nlevels))
        return "pandas.MultiIndex", (levels, tuple(value.names))
    return ("pandas.Index", (_column(pandas, value.array), value.name)) if isinstance(value, pandas.Index) else None


def _column(pandas: Any, column: Any) -> Any:
    """A column as an array of numpy, or as type, items and categories. Raises NotAValue for any other."""
    name = str(column.dtype)
    if name == "category":
        return name, tuple(column.codes.tolist()), tuple(column.categories), bool(column.ordered)
    if type(column).__name__ in {"NumpyExtensionArray", "DatetimeArray", "TimedeltaArray"} and "," not in name:
        return column.to_numpy()
    is_text = name.startswith(("period", "datetime64"))
    if not is_text and not name.lstrip("U").startswith(("Int", "Float", "str", "boolean")):
        raise NotAValue(f"a column of {name} is not plain data")
    items = zip(column if is_text else column.tolist(), column.isna(), strict=True)
    return name, tuple(None if missing else str(item) if is_text else item for item, missing in items)


def _filled(column: Any) -> dict[str, Any]:
    """The values of a column, and the type that pandas must not infer."""
    if type(column) is not tuple:
        return {"data": column, "dtype": object if column.dtype.kind == "O" else None}
    name = str(column[0])
    if name == "category":
        return {"data": _named("pandas.Categorical").from_codes(column[1], column[2], ordered=column[3])}
    return {"data": _named("pandas.array")(list(column[1]), dtype=name)}


def _frame(columns: Any, index: Any, values: Any) -> Any:
    series = {n: _named("pandas.Series")(**_filled(v), index=index) for n, v in enumerate(values)}
    frame = _named("pandas.DataFrame")(series, index)
    frame.columns = columns
    return frame


def _timestamp(text: str, unit: str, zone: Any) -> Any:
    found = _named("pandas.Timestamp")(text).as_unit(unit)
    return found.tz_convert(zone) if zone else found


# Name of the type: (to built-in values, from built-in values)
_OTHERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "namedtuple": (tuple, lambda p: _namedtuple(*p)),
    "builtins.complex": (lambda v: (v.real, v.imag), lambda p: complex(*p)),
    "builtins.ellipsis": (lambda v: None, lambda p: ...),
    "_io.StringIO": (lambda v: (v.getvalue(), v.tell()), lambda p: _stream("io.StringIO", *p)),
    "_io.BytesIO": (lambda v: (v.getvalue(), v.tell()), lambda p: _stream("io.BytesIO", *p)),
    "array.array": (lambda v: (v.typecode, tuple(v)), lambda p: _named("array.array")(*p)),
    "uuid.UUID": (str, lambda p: _named("uuid.UUID")(p)),
    "zoneinfo.ZoneInfo": (lambda v: v.key, lambda p: _named("zoneinfo.ZoneInfo")(p)),
    "random.Random": (lambda v: v.getstate(), lambda p: _random(p)),
    "numpy.Generator": (tuple, lambda p: _generator(*p)),
    "numpy.ndarray": (tuple, lambda p: _array(*p)),
    "numpy.generic": (tuple, lambda p: _array(*p)[()]),
    "pandas.Series": (tuple, lambda p: _named("pandas.Series")(**_filled(p[0]), index=p[1], name=p[2])),
    "pandas.Index": (tuple, lambda p: _named("pandas.Index")(**_filled(p[0]), name=p[1])),
    "pandas.RangeIndex": (tuple, lambda p: _named("pandas.RangeIndex")(*p[:3], name=p[3])),
    "pandas.MultiIndex": (tuple, lambda p: _named("pandas.MultiIndex").from_arrays(p[0], names=p[1])),
    "pandas.DataFrame": (tuple, lambda p: _frame(*p)),
    "pandas.Timestamp": (tuple, lambda p: _timestamp(*p)),
    "pandas.Timedelta": (tuple, lambda p: _named("pandas.Timedelta")(p[0], unit="ns").as_unit(p[1])),
    "pandas.missing": (str, lambda p: _named(f"pandas.{({'NaT', 'NA'} & {p}).pop()}")),
}
