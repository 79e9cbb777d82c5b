"""Checks of configuration values; each error is one sentence. NaN fails all of them."""

from __future__ import annotations

import typing
from typing import Annotated, Any


def check_ranges(knobs: Any) -> None:
    """Run the checks that the types of a dataclass's fields name, such as `steps: Count`, on its values."""
    for name, hint in typing.get_type_hints(type(knobs), include_extras=True).items():
        for part in (hint, *typing.get_args(hint)):
            for check in getattr(part, "__metadata__", ()):
                check(knobs, name)


def at_least_one(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob below 1; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not value >= 1:
            raise ValueError(f"{name} {value} must be at least 1")


def not_negative(knobs: Any, *names: str) -> None:
    """Raise ValueError for a negative knob; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not value >= 0:
            raise ValueError(f"{name} {value} must not be negative")


def positive(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob that is not above 0."""
    for name in names:
        if not getattr(knobs, name) > 0:
            raise ValueError(f"{name} {getattr(knobs, name)} must be positive")


def in_unit_interval(knobs: Any, *names: str) -> None:
    """Raise ValueError for a knob outside [0, 1]; None passes."""
    for name in names:
        value = getattr(knobs, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{name} {value} must be between 0 and 1")


def decays(knobs: Any, *names: str) -> None:
    """Raise ValueError for the decay of a moving average that is not in [0, 1)."""
    for name in names:
        if not 0 <= getattr(knobs, name) < 1:
            raise ValueError(f"'{name}' {getattr(knobs, name)} must be at least 0 and below 1")


def time_limits(knobs: Any, *names: str) -> None:
    """Raise ValueError for a time limit that is negative; 0 means no limit."""
    for name in names:
        if not getattr(knobs, name) >= 0:
            raise ValueError(f"{name!r} {getattr(knobs, name)} must be seconds, or 0 for no limit")


# Types of fields whose range `check_ranges` checks.
Count = Annotated[int, at_least_one]
NotNegative = Annotated[float, not_negative]
Positive = Annotated[float, positive]
Share = Annotated[float, in_unit_interval]
AtLeastOne = Annotated[float, at_least_one]
