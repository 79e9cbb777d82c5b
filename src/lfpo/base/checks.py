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


def _check(knobs: Any, names: tuple[str, ...], holds: Callable[[Any], bool], what: str) -> None:
    """Raise ValueError, saying what it must be, for a knob that does not hold; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name} {value} must {what}")


def at_least_one(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob below 1; None passes."""
    _check(knobs, names, lambda value: value >= 1, "be at least 1")


def not_negative(knobs: Any, *names: str) -> None:
    """Raise ValueError for a negative knob; None passes."""
    _check(knobs, names, lambda value: value >= 0, "not be negative")


def positive(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob that is not above 0; None passes."""
    _check(knobs, names, lambda value: value > 0, "be positive")


def in_unit_interval(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob outside [0, 1]; None passes."""
    _check(knobs, names, lambda value: 0 <= value <= 1, "be between 0 and 1")


def decays(knobs: Any, *names: str) -> None:
    """Raise ValueError for the decay of a moving average that is not in [0, 1)."""
    _check(knobs, names, lambda value: 0 <= value < 1, "be at least 0 and below 1")


def time_limits(knobs: Any, *names: str) -> None:
    """Raise ValueError for a time limit that is negative; 0 means no limit."""
    _check(knobs, names, lambda value: value >= 0, "be seconds, or 0 for no limit")


# Types of fields whose range `check_ranges` checks.
Count = Annotated[int, at_least_one]
NotNegative = Annotated[float, not_negative]
Positive = Annotated[float, positive]
Share = Annotated[float, in_unit_interval]
AtLeastOne = Annotated[float, at_least_one]
