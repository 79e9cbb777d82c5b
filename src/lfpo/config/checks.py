"""Ranges of settings, named by the types of their fields; each error is one sentence. NaN fails all of them."""

import functools
import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

# typing resolves every annotation of a class anew at each call.
type_hints: Callable[..., dict[str, Any]] = functools.cache(typing.get_type_hints)


@dataclass(frozen=True)
class Range:
    """The numbers that a field takes. The same numbers bound its values in the JSON schema (lfpo.config.schema)."""

    must: str
    """The end of the sentence "KEY VALUE must ..."."""

    least: float = -math.inf
    most: float = math.inf
    without: frozenset[float] = frozenset()
    """Numbers that do not belong to the range, such as one of its ends."""

    def holds(self, value: Any) -> bool:
        return self.least <= value <= self.most and value not in self.without


@dataclass(frozen=True)
class OneOf:
    """Names that a text field takes, for editors and messages. others: a pattern of what it takes besides, such as a
    dotted path (None: nothing). Nothing is checked here: whoever looks the name up raises for a wrong one."""

    names: tuple[str, ...]
    others: str | None = None


# Types of fields whose range `check_ranges` checks.
Count = Annotated[int, Range("be at least 1", 1)]
CountOrUnset = Annotated[int, Range("be at least 1, or -1 where it is not given", -1, without=frozenset({0}))]
CountOrZero = Annotated[int, Range("not be negative", 0)]
Port = Annotated[int, Range("be between 0 and 65535", 0, 65535)]
AtLeastOne = Annotated[float, Range("be at least 1", 1)]
NotNegative = Annotated[float, Range("not be negative", 0)]
Positive = Annotated[float, Range("be positive", 0, without=frozenset({0}))]
Share = Annotated[float, Range("be between 0 and 1", 0, 1)]
ShareBelowOne = Annotated[float, Range("be at least 0 and below 1", 0, 1, frozenset({1}))]
ShareAboveZero = Annotated[float, Range("be above 0 and at most 1", 0, 1, frozenset({0}))]
ShareInside = Annotated[float, Range("be above 0 and below 1", 0, 1, frozenset({0, 1}))]
Seconds = Annotated[float, Range("be seconds, or 0 for no limit", 0)]


def check_ranges(settings: object) -> None:
    """Raise ValueError for a value of a dataclass that is outside of the range that its field's type names, such as
    `steps: Count`. None passes, where the type has it."""
    for name, hint in type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        for limit in limits(hint) if value is not None else ():
            if not limit.holds(value):
                raise ValueError(f"{name} {value} must {limit.must}")


def refuse(*rules: tuple[object, str]) -> None:
    """Raise ValueError with the sentence of the first rule, (condition, sentence), whose condition holds."""
    for holds, sentence in rules:
        if holds:
            raise ValueError(sentence)


def limits(hint: object) -> Iterator[Range]:
    """The ranges that a type names: `Count`, or `Count | None`."""
    for option in options(hint):
        yield from (part for part in getattr(option, "__metadata__", ()) if isinstance(part, Range))


def options(hint: object) -> tuple[Any, ...]:
    """The types that a field may have besides None: of `A | B | None`, A and B. Python has two kinds of unions: `|`
    makes the one of typing where a part is Annotated."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(part for part in parts if part is not type(None))
