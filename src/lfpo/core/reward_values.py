"""What a user's function returned, as rewards: the one place that decides what is a number."""

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from lfpo.config.errors import UserError

ASYNCHRONOUS = "is asynchronous; give a plain function, or run it by asyncio.run (in a notebook, in another thread)"


class NotANumber(ValueError):
    """A value that is no reward. The message says what it is."""


def checked(values: object, name: str, expected: int) -> list[float | None]:
    """The rewards that function `name` returned for so many completions, as floats, and None where it gave none.

    values: anything that gives its items in order: a list, tuple, generator, array, tensor on any device, pandas
        Series. An item is a number that float holds, or an array of one (see `number`).
    Raises UserError, in one sentence with the function and the item's index, for anything else.
    """
    what = f"reward function {name!r}"
    if inspect.isawaitable(values):
        if inspect.iscoroutine(values):
            values.close()  # else Python warns that nothing waited for it
        raise UserError(f"{what}: {ASYNCHRONOUS}")
    if hasattr(values, "detach"):  # a tensor: one copy from the device, not one for each item
        values = values.detach().cpu()
    # A mapping would give its keys, which may be numbers.
    if isinstance(values, Mapping) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise UserError(f"{what}: returned {type(values).__name__}, expected a list of numbers")
    items = list(values)
    if len(items) != expected:
        raise UserError(f"{what}: returned {len(items)} rewards for {expected} completions")
    rewards: list[float | None] = []
    for i, item in enumerate(items):
        try:
            rewards.append(number(item))
        except NotANumber as error:
            raise UserError(
                f"{what}: reward {i} is {error}, expected a finite number, or None where it does not apply"
            ) from None
    return rewards


def number(value: Any) -> float | None:
    """A reward as a float, or None. Takes what float holds: bool, int, Decimal, Fraction, scalars of numpy and torch,
    and arrays and tensors of any shape that hold one number. Raises NotANumber for anything else, also NaN and
    infinities."""
    inner = single(value)
    if inner is None:  # also in an array of one object
        return None
    try:
        if not isinstance(inner, str) and math.isfinite(as_float := float(inner)):
            return as_float
    except (TypeError, ValueError, RuntimeError, OverflowError):  # no number, or one that float cannot hold
        pass
    raise NotANumber(shortened(inner))


def single(value: Any) -> Any:
    """The value in a scalar of numpy or torch, or in an array of one; any other value as it is. Raises NotANumber for
    an array of several."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):
        raise NotANumber(shortened(value)) from None


def shortened(value: Any) -> str:
    """A value's repr in at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
