"""Types of plain data besides the built-in ones: how they become built-in values, and are built from them again.

The set is closed, and its constructors are pure: they open nothing, import only these modules and call nothing that
they are given. Attributes that a sender set on an instance are not sent.
"""

from __future__ import annotations

import sys

from .plain_base import BASES, REDUCED, NotAValue, plain_base

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ARRAY_KINDS = "biufcmMSU"


def to_plain(value: Any) -> tuple[str, Any] | None:
    """Kind and built-in content of an instance of one of the types, None for anything else."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package in ("numpy", "pandas"):
        module = sys.modules.get(package)
        to = _numpy_to_plain if package == "numpy" else _pandas_to_plain
        return to(module, value) if module else None
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in REDUCED and _is_this_type(kind):
        return name, _reduced(value)
    if name in _OTHERS and _is_this_type(kind):
        return name, _OTHERS[name][0](value)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__eq__ is tuple.__eq__:
        return "namedtuple", (kind.__name__, kind._fields, tuple(tuple.__iter__(value)))
    if isinstance(value, BASES):
        try:
            return "base", plain_base(value)
        except NotAValue:
            return None
    return None


def from_plain(kind: str, content: Any) -> Any:
    """The instance; NotImplemented for a kind that is not in the set."""
    if kind == "base":
        return content
    if kind in _OTHERS:
        return _OTHERS[kind][1](content)
    if kind not in REDUCED:
        return NotImplemented
    arguments, items, pairs = content
    module, _, name = kind.partition(".")
    value = getattr(_module(module), name)(*arguments)
    if items:
        value.extend(items)
    for key, item in pairs:
        value[key] = item
    return value


def _is_this_type(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "builtins" or getattr(module, kind.__qualname__, None) is kind


def _reduced(value: Any) -> tuple[Any, list[Any], list[Any]]:
    """Arguments of the type's constructor, items and pairs. A time zone of another library becomes its offset."""
    if type(value) is complex:
        return (value.real, value.imag), [], []
    zone = getattr(value, "tzinfo", None)
    if zone is not None and to_plain(zone) is None:
        datetime, offset = _module("datetime"), value.utcoffset()
        value = value.replace(tzinfo=None if offset is None else datetime.timezone(offset))
    _, arguments, _, items, pairs = (*value.__reduce_ex__(4), None, None, None)[:5]
    return arguments, list(items or ()), list(pairs or ())


def _module(name: str) -> Any:
    __import__(name)  # importlib and functools would take longer to import than most jobs
    return sys.modules[name]


def _namedtuple(name: str, fields: Any, items: Any) -> Any:
    """A tuple without names if one of them would be a method."""
    return items if any(map(callable, items)) else _module("collections").namedtuple(name, fields)(*items)


def _stream(kind: str, content: Any, position: int) -> Any:
    stream = getattr(_module("io"), kind)(content)
    stream.seek(position)
    return stream


def _random(state: Any) -> Any:
    made = _module("random").Random()
    made.setstate(state)
    return made


def _generator(name: str, state: Any) -> Any:
    random = _module("numpy.random")
    made = {"PCG64": random.PCG64, "MT19937": random.MT19937, "Philox": random.Philox}[name](0)
    made.state = state
    return random.Generator(made)


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
    content = list(array.flat) if array.dtype.kind == "O" else array.tobytes()
    return "numpy.ndarray" if kind is numpy.ndarray else "numpy.generic", (array.dtype.str, array.shape, content)


def _array(dtype: str, shape: Any, content: Any) -> Any:
    numpy = _module("numpy")
    kind = numpy.dtype(str(dtype)).kind
    if kind == "O":
        if any(map(callable, content)):
            raise ValueError("a function in an array")  # by its label it would be a method of a series
        result = numpy.empty(len(content), dtype=object)
        result[:] = content
        return result.reshape(shape)
    if kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of {dtype} are not plain data")
    return numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()


def _pandas_to_plain(pandas: Any, value: Any) -> tuple[str, Any] | None:
    kind = type(value)
    if value is pandas.NaT or value is pandas.NA:
        return "pandas.missing", "NaT" if value is pandas.NaT else "NA"
    if kind is pandas.Timestamp:
        return "pandas.Timestamp", (value.isoformat(), value.unit, None if value.tz is None else str(value.tz))
    if kind is pandas.Timedelta:
        return "pandas.Timedelta", (value.as_unit("ns").value, value.unit)
    if kind is pandas.DataFrame:
        columns = [_column(pandas, value.iloc[:, number].array) for number in range(value.shape[1])]
        return "pandas.DataFrame", (value.columns, value.index, columns)
    if kind is pandas.Series:
        return "pandas.Series", (_column(pandas, value.array), value.index, value.name)
    if kind is pandas.RangeIndex:
        return "pandas.RangeIndex", (value.start, value.stop, value.step, value.name)
    if kind is pandas.MultiIndex:
        levels = [value.get_level_values(number) for number in range(value.nlevels)]
        return "pandas.MultiIndex", (levels, list(value.names))
    if isinstance(value, pandas.Index):
        return "pandas.Index", (_column(pandas, value.array), value.name)
    return None


def _column(pandas: Any, column: Any) -> Any:
    """A column as an array of numpy, or as type, items and categories. Raises NotAValue for any other."""
    name = str(column.dtype)
    if name == "category":
        return name, column.codes.tolist(), list(column.categories), bool(column.ordered)
    of_numpy = hasattr(column.dtype, "numpy_dtype") or not isinstance(
        column.dtype, pandas.api.extensions.ExtensionDtype
    )
    if of_numpy and type(column).__name__ in {"NumpyExtensionArray", "DatetimeArray", "TimedeltaArray"}:
        return column.to_numpy()
    if name.startswith(("period", "datetime64")):
        return name, [None if missing else str(item) for item, missing in zip(column, column.isna(), strict=True)]
    if name.lstrip("U").startswith(("Int", "Float", "str", "boolean")):
        items = zip(column.tolist(), column.isna(), strict=True)
        return name, [None if missing else item for item, missing in items]
    raise NotAValue(f"a column of {name} is not plain data")


def _filled(column: Any) -> Any:
    """The values of a column, and the type that pandas must not infer."""
    if type(column) is not tuple:
        return {"data": column, "dtype": object if column.dtype.kind == "O" else None}
    pandas, name = _module("pandas"), str(column[0])
    if name == "category":
        return {"data": pandas.Categorical.from_codes(column[1], column[2], ordered=column[3])}
    return {"data": pandas.array(column[1], dtype=name)}


def _frame(columns: Any, index: Any, values: list[Any]) -> Any:
    pandas = _module("pandas")
    frame = pandas.DataFrame({n: pandas.Series(**_filled(v), index=index) for n, v in enumerate(values)}, index)
    frame.columns = columns
    return frame


def _of(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(_module("pandas"), name)
    return found


# Name of the type: (to built-in values, from built-in values)
_OTHERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "namedtuple": (list, lambda p: _namedtuple(*p)),
    "builtins.ellipsis": (lambda v: None, lambda p: ...),
    "_io.StringIO": (lambda v: (v.getvalue(), v.tell()), lambda p: _stream("StringIO", *p)),
    "_io.BytesIO": (lambda v: (v.getvalue(), v.tell()), lambda p: _stream("BytesIO", *p)),
    "array.array": (lambda v: (v.typecode, list(v)), lambda p: _module("array").array(*p)),
    "uuid.UUID": (str, lambda p: _module("uuid").UUID(p)),
    "zoneinfo.ZoneInfo": (lambda v: v.key, lambda p: _module("zoneinfo").ZoneInfo(p)),
    "random.Random": (lambda v: v.getstate(), lambda p: _random(p)),
    "numpy.Generator": (list, lambda p: _generator(*p)),
    "numpy.ndarray": (list, lambda p: _array(*p)),
    "numpy.generic": (list, lambda p: _array(*p)[()]),
    "pandas.Series": (list, lambda p: _of("Series")(**_filled(p[0]), index=p[1], name=p[2])),
    "pandas.Index": (list, lambda p: _of("Index")(**_filled(p[0]), name=p[1])),
    "pandas.RangeIndex": (list, lambda p: _of("RangeIndex")(*p[:3], name=p[3])),
    "pandas.MultiIndex": (list, lambda p: _module("pandas").MultiIndex.from_arrays(p[0], names=p[1])),
    "pandas.DataFrame": (list, lambda p: _frame(*p)),
    "pandas.Timestamp": (
        list,
        lambda p: (lambda t: t.tz_convert(p[2]) if p[2] else t)(_of("Timestamp")(p[0]).as_unit(p[1])),
    ),
    "pandas.Timedelta": (list, lambda p: _of("Timedelta")(p[0], unit="ns").as_unit(p[1])),
    "pandas.missing": (str, lambda p: {"NaT": _module("pandas").NaT, "NA": _module("pandas").NA}[p]),
}
