"""Checks of configuration values; each error is one sentence. NaN fails all of them."""

import typing
from collections.abc import Callable
from typing import Annotated, Any


def check_ranges(knobs: Any) -> None:
    """Run the checks that the types of a dataclass's fields name, such as `steps: Count`, on its values."""
    for name, hint in typing.get_type_hints(type(knobs), include_extras=True).items():
        for part in (hint, *typing.get_args(hint)):
            for check in getattr(part, "__metadata__", ()):
                check(knobs, name)


def _must(what: str, holds: Callable[[Any], bool]) -> Callable[[Any, str], None]:
    """A check, (knobs, name), that raises ValueError for a knob that does not hold; None passes."""

    def check(knobs: Any, name: str) -> None:
        value = getattr(knobs, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name} {value} must {what}")

    return check


# Types of fields whose range `check_ranges` checks.
Count = Annotated[int, _must("be at least 1", lambda value: value >= 1)]
CountOrUnset = Annotated[int, _must("be at least 1, or -1 where it is not given", lambda v: v >= 1 or v == -1)]
CountOrZero = Annotated[int, _must("not be negative", lambda value: value >= 0)]
AtLeastOne = Annotated[float, _must("be at least 1", lambda value: value >= 1)]
NotNegative = Annotated[float, _must("not be negative", lambda value: value >= 0)]
Positive = Annotated[float, _must("be positive", lambda value: value > 0)]
Share = Annotated[float, _must("be between 0 and 1", lambda value: 0 <= value <= 1)]
ShareBelowOne = Annotated[float, _must("be at least 0 and below 1", lambda value: 0 <= value < 1)]
ShareAboveZero = Annotated[float, _must("be above 0 and at most 1", lambda value: 0 < value <= 1)]
Seconds = Annotated[float, _must("be seconds, or 0 for no limit", lambda value: value >= 0)]
