"""Objects of the standard library, numpy and pandas, and of the program's named tuples, dataclasses and enums, as plain
data, and what the judge makes of them.

Nothing of the sender's is run: a type is either one of those named here, or made by the judge, with names and values
as its only content. What only a class of the program could answer is not judged.
"""

from __future__ import annotations

import _operator as operator
import sys

from .values import named

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Cannot = Callable[[str], BaseException]  # leaves the test without a verdict, and gives what to raise

PROGRAM = "program"
"""Name of the program's module."""
OPERATIONS = (
    *("bool", "contains", "getitem", "setitem", "delitem", "int", "float", "complex", "index", "str", "repr"),
    *("format", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "round", "reversed", "await", "aiter", "anext"),
    *(side + name for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow") for side in ("", "r")),
    *(side + name for name in ("matmul", "and", "or", "xor", "divmod", "lshift", "rshift") for side in ("", "r")),
)
"""Special methods that a class of the program may define."""
suite: dict[str, object] | None = None
"""In the judge, the names of the suite. Only its code is told the fields of an object: a library, such as numpy, would
take the program's `shape` for that of an array."""
_GENERATORS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
_LISTED = {"object", "str", "string"}  # dtypes of pandas that travel as lists
_INDEXES = {"Index", "DatetimeIndex", "TimedeltaIndex"}


def taken_apart(value: Any, number: Callable[[object], int]) -> tuple[str, object] | None:
    """Kind and content of the object, whose parts are values too; None for any other object. number: of an instance,
    by which the other process can pass it back."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "re.Match" and isinstance(value.string, str | bytes):
        groups = tuple(value.re.groupindex.items())
        return "match", (value.string, value.regs, groups, value.lastindex, value.pos, value.endpos)
    if name == "zoneinfo.ZoneInfo" and value.key:
        return "zone", value.key
    if name.startswith("pandas."):
        return _of_pandas(value)
    if not kind.__name__.isidentifier():  # no class of the judge can be called so
        return None
    if isinstance(value, tuple):
        names = getattr(kind, "_fields", None)
        if kind.__bases__ != (tuple,) or type(names) is not tuple or len(names) != len(value):
            return None
        return ("namedtuple", (kind.__name__, names, tuple(value))) if all(map(_is_field, names)) else None
    if "enum" in sys.modules and isinstance(value, sys.modules["enum"].Enum):
        base = next((b for b in (int, str) if isinstance(value, b)), None)
        if base or kind.__module__ == PROGRAM:
            return "enum", (kind.__name__, value._name_, value._value_, base and base(value), number(value))
    if isinstance(fields := getattr(kind, "__dataclass_fields__", None), dict) and kind.__module__ == PROGRAM:
        pairs = [(field, getattr(value, field)) for field in fields if hasattr(value, field)]
        return "dataclass", (kind.__name__, tuple(pairs), number(value))
    return None


def state_of(value: Any) -> tuple[str, object] | None:
    """Kind and state of a random generator."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "random.Random":
        return "random", value.getstate()
    if name == "numpy.random._generator.Generator" and type(value.bit_generator).__name__ in _GENERATORS:
        return "generator", value.bit_generator.state
    if name == "numpy.random.mtrand.RandomState":
        return "state", tuple(value.get_state())
    return None


def generator(kind: str, state: Any) -> object:
    """A random generator in this state."""
    if kind == "random":
        new = named("random.Random")(0)
        new.setstate(state)
        return new
    if kind == "state":
        new = named("numpy.random.RandomState")(0)
        new.set_state(state)
        return new
    if state["bit_generator"] not in _GENERATORS:
        raise ValueError("not a bit generator of numpy")
    bits = getattr(named("numpy.random"), state["bit_generator"])(0)
    bits.state = state
    return named("numpy.random.Generator")(bits)


def made(kind: str, content: Any, cannot: Cannot, reduced: list[object]) -> object:
    """The object of a kind and content. reduced: gets those that lack attributes of their class. Raises any exception
    for content that taken_apart does not give."""
    if kind == "match":
        return Match(content, cannot)
    if kind == "zone":
        if not all(part.replace("_", "a").replace("-", "a").replace("+", "a").isalnum() for part in content.split("/")):
            raise ValueError("not the name of a time zone")
        return named("zoneinfo.ZoneInfo")(content)
    if kind.startswith("pandas."):
        parts = [content] if kind != "pandas.DataFrame" else content[0]
        if any(type(part[1]) is list and any(map(_is_handle, part[1])) for part in parts):
            return Instance("Series", {}, cannot, -1)
        return _to_pandas(kind, content)
    if kind == "dataclass":
        return Instance(content[0], dict(content[1]), cannot, content[2])
    if kind == "namedtuple":
        new = _named_tuple(*content) if not any(map(_is_handle, content[2])) else Instance(content[0], {}, cannot, -1)
    elif kind != "enum":
        raise ValueError(f"unknown kind {kind!r}")
    else:
        name, member, value, base, number = content
        if base is None:
            return Instance(name, {"name": member, "value": value}, cannot, number)
        if type(base) not in (int, str):
            raise ValueError("not a base of an enum")
        if type(member) not in (str, type(None)):  # that of several flags is A|B, or None
            raise ValueError("not a name")
        new = type(_word(name), (type(base),), {"name": member, "value": value})(base)
    reduced.append(new)
    return new


def _word(name: object) -> str:
    if type(name) is not str or not name.isidentifier():
        raise ValueError("not a name")
    return name


def _is_field(name: object) -> bool:
    """Whether a field of a named tuple may be called so in the judge: not as a tuple's own method."""
    return type(name) is str and name.isidentifier() and name[0] != "_" and not hasattr(tuple, name)


def _named_tuple(name: str, names: tuple[str, ...], values: tuple[object, ...]) -> object:
    """A tuple with names. collections.namedtuple would compile a text."""
    if len(names) != len(values) or not all(map(_is_field, names)):
        raise ValueError("not the fields of a named tuple")
    members: dict[str, object] = {field: property(_getter(field, i)) for i, field in enumerate(names)}
    members |= {"__slots__": (), "_fields": names, "_asdict": lambda own: dict(zip(names, own, strict=True))}
    members["_replace"] = lambda own, **new: type(own)([new.get(f, v) for f, v in zip(names, own, strict=True)])
    members["__repr__"] = lambda own: f"{name}({', '.join(f'{f}={v!r}' for f, v in zip(names, own, strict=True))})"
    return type(_word(name), (tuple,), members)(values)


def _getter(field: str, number: int) -> Callable[[tuple[object, ...]], object]:
    """Gives an item of a tuple, as its field, to those who may have it."""

    def get(own: tuple[object, ...]) -> object:
        if _library_asks():
            raise AttributeError(field)
        return own[number]

    return get


def _library_asks() -> bool:
    """Whether the caller of an attribute's getter is not the suite, in the judge."""
    return suite is not None and sys._getframe(2).f_globals is not suite


class Instance:
    """An instance of a class of the program: its public fields, and equality to another of the same class by them."""

    __slots__ = ("_cannot", "_fields", "_name", "_number")

    def __init__(self, name: str, fields: dict[str, object], cannot: Cannot, number: int) -> None:
        self._name, self._fields, self._cannot, self._number = _word(name), fields, cannot, operator.index(number)

    def __getattr__(self, name: str) -> object:
        value = object.__getattribute__(self, "_fields").get(name, self)
        if value is self or _is_handle(value) or name[:2] == "__" or _library_asks():
            raise self._cannot(f"has as {name}")
        return value

    def __eq__(self, other: object) -> bool:
        if type(other) is not Instance or other._name != self._name:
            raise self._cannot("equals")
        return bool(self._fields == other._fields)

    def __hash__(self) -> int:
        raise self._cannot("has as hash")

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise self._cannot("is an instance of")

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise self._cannot("has as attributes")

    __dataclass_fields__ = __dict__

    def __len__(self) -> int:
        raise self._cannot("has as length")

    def __iter__(self) -> Iterator[object]:
        raise self._cannot("iterates over")

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise self._cannot("returns")


def _is_handle(value: object) -> bool:
    """Whether a part is a function, say, of the program: it would be the program's choice of a method."""
    return type(value).__module__ == __name__.replace("objects", "link")


def refuse(kind: type, cannot_of: Callable[[Any], Cannot]) -> None:
    """Gives the class methods for all OPERATIONS that leave a test without a verdict."""

    def refused(name: str) -> Callable[..., object]:
        def method(self: object, *operands: object) -> object:
            raise cannot_of(self)(f"answers to {name}")

        return method

    for name in OPERATIONS:
        setattr(kind, f"__{name}__", refused(f"__{name}__"))


refuse(Instance, lambda instance: instance._cannot)


class Match:
    """What `re.Match` has, from the text and the places of its groups. The pattern is not matched again."""

    def __init__(self, content: Any, cannot: Cannot) -> None:
        self.string, self.regs, names, self.lastindex, self.pos, self.endpos = content
        self._names, self._cannot = dict(names), cannot
        numbers = [number for span in self.regs for number in span]
        if type(self.string) not in (str, bytes) or {*map(type, numbers)} != {int} or not all(map(_is_span, self.regs)):
            raise ValueError("not a match")

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return named("re.Match")

    def __getattr__(self, name: str) -> object:
        raise self._cannot(f"has as {name}")

    def span(self, group: Any = 0) -> tuple[int, int]:
        number = self._names.get(group, group) if isinstance(group, str) else operator.index(group)
        if type(number) is not int or not 0 <= number < len(self.regs):
            raise IndexError("no such group")
        return self.regs[number]

    def start(self, group: object = 0) -> int:
        return self.span(group)[0]

    def end(self, group: object = 0) -> int:
        return self.span(group)[1]

    def __getitem__(self, group: object) -> object:
        begin, end = self.span(group)
        return None if begin < 0 else self.string[begin:end]

    def group(self, *groups: object) -> object:
        texts = tuple(self[group] for group in groups or (0,))
        return texts if len(groups) > 1 else texts[0]

    def groups(self, default: object = None) -> tuple[object, ...]:
        return tuple(default if self.regs[n][0] < 0 else self[n] for n in range(1, len(self.regs)))

    def groupdict(self, default: object = None) -> dict[str, object]:
        return {name: default if self.regs[n][0] < 0 else self[n] for name, n in self._names.items()}

    @property
    def lastgroup(self) -> str | None:
        return next((name for name, number in self._names.items() if number == self.lastindex), None)

    def __repr__(self) -> str:
        return f"<re.Match object; span={self.span()}, match={self.group()!r}>"


def _is_span(span: object) -> bool:
    return type(span) is tuple and len(span) == 2


def _of_pandas(value: Any) -> tuple[str, object] | None:
    """Frames, series, indexes and times without a time zone; None for what has other types of columns."""
    pandas, kind = sys.modules["pandas"], type(value)
    if kind is pandas.Timestamp and value.tz is None:
        return "pandas.Timestamp", (value.asm8.dtype.str, int(value.asm8.astype("int64")))
    if kind is pandas.RangeIndex:
        return "pandas.RangeIndex", (value.start, value.stop, value.step, value.name)
    if kind is pandas.MultiIndex:
        return "pandas.MultiIndex", (value.tolist(), tuple(value.names))
    if isinstance(value, pandas.Index) and kind.__name__ in _INDEXES and (column := _column(value)):
        return f"pandas.{kind.__name__}", (*column, value.name, getattr(value, "freqstr", None))
    if not all(map(_is_label, [*getattr(value, "index", ()), *getattr(value, "columns", ())])):
        return None
    if kind is pandas.Series and (column := _column(value)):
        return "pandas.Series", (*column, value.index, value.name)
    if kind is pandas.DataFrame:
        columns = [_column(value.iloc[:, number]) for number in range(value.shape[1])]
        return ("pandas.DataFrame", (columns, value.columns, value.index)) if all(columns) else None
    return None


def _column(values: Any) -> tuple[str, object] | None:
    """Name of the dtype, and an array or a list; None for dtypes that are neither numpy's nor in _LISTED."""
    dtype = values.dtype
    if getattr(dtype, "kind", "O") in "biufcmM" and type(dtype).__module__.startswith("numpy"):
        return "", values.to_numpy()
    return (str(dtype), values.astype(object).tolist()) if str(dtype) in _LISTED else None


def _is_label(label: object) -> bool:
    """Whether a series or frame may have the label, which is an attribute too: not one where numpy finds an array."""
    return type(label) is not str or label[:2] != "__"


def _to_pandas(kind: str, content: Any) -> Any:
    import pandas

    def column(dtype: str, values: object, make: Callable[..., object], **rest: object) -> object:
        if dtype and dtype not in _LISTED:
            raise ValueError("not a dtype that travels")
        return make(values, dtype=dtype or None, **rest)

    name = kind.removeprefix("pandas.")
    if name == "Timestamp":
        dtype, number = content
        return pandas.Timestamp(named("numpy.array")(number, "int64").view(dtype)[()])
    if name == "RangeIndex":
        return pandas.RangeIndex(*content[:3], name=content[3])
    if name == "MultiIndex":
        return pandas.MultiIndex.from_tuples(content[0], names=content[1])
    if name in _INDEXES:
        dtype, values, label, frequency = content
        extra = {"freq": frequency} if frequency else {}
        return column(dtype, values, getattr(pandas, name), name=label, **extra)
    if name not in ("Series", "DataFrame"):
        raise ValueError(f"unknown kind {kind!r}")
    labels = content[2] if name == "Series" else [*content[1], *content[2]]
    if not all(map(_is_label, labels)):
        raise ValueError("not a label")
    if name == "Series":
        dtype, values, index, label = content
        return column(dtype, values, pandas.Series, index=index, name=label)
    columns, labels, index = content
    parts = {
        number: column(dtype, values, pandas.Series, index=index) for number, (dtype, values) in enumerate(columns)
    }
    frame = pandas.DataFrame(parts, index=index)
    frame.columns = labels
    return frame
