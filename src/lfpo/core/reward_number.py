"""What a user's function returned, as a reward: the one place that decides what is a number."""

import math
from typing import Any


class NotANumber(ValueError):
    """A value that is no reward. The message says what it is."""


def number(value: Any) -> float | None:
    """A reward as a float, or None. Takes what float holds: bool, int, Decimal, Fraction, scalars of numpy and torch,
    and arrays and tensors of any shape that hold one number. Raises NotANumber for text, complex numbers, NaN,
    infinities, integers beyond the range of float, and arrays of several numbers."""
    inner = value
    if hasattr(value, "item"):  # numpy and torch
        try:
            inner = value.item()
        except (ValueError, RuntimeError):
            raise NotANumber(f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}") from None
    if inner is None:  # also in an array of one object
        return None
    if isinstance(inner, complex) or not (hasattr(inner, "__float__") or hasattr(inner, "__index__")):
        raise NotANumber(shortened(inner))
    try:
        as_float = float(inner)
    except OverflowError:
        raise NotANumber(f"{shortened(inner)}, which is beyond the range of float") from None
    except (TypeError, ValueError):
        raise NotANumber(shortened(inner)) from None
    if not math.isfinite(as_float):
        beyond = f", which is {as_float} as float" if repr(inner) != repr(as_float) else ""
        raise NotANumber(f"{shortened(inner)}{beyond}")
    return as_float


def shortened(value: Any) -> str:
    """A value's repr in at most 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of more than 4300 digits
        return f"{type(value).__name__} of {value.bit_length()} bits"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
