"""Comparisons of a suite with arrays: emptiness equals nothing but emptiness, and the program's value is not broadcast.

The host rewrites operators and numpy's comparisons in a suite's source to calls of these functions (guards.py).
"""

from __future__ import annotations

import _operator as operator  # `operator` takes longer to import
import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PLAIN = {int, float, str, bool, list, dict, tuple, set, type(None)}
_ARRAYS = {"numpy", "pandas", "_pytest", "scipy"}


def install(space: dict[str, Any], fail: Callable[[str], BaseException]) -> None:
    """Define the functions in the suite's module. fail: fails the test, and gives what to raise."""

    def operate(name: str, left: Any, right: Any) -> Any:
        """The operator's result, unless an empty array meets something of another shape."""
        plain = type(left) in _PLAIN and type(right) in _PLAIN
        if not plain and any(type(side).__module__.partition(".")[0] in _ARRAYS for side in (left, right)):
            a, b = _shape(left), _shape(right)
            if a != b and 0 in (*(a or ()), *(b or ())):
                raise fail(f"an empty array meets an array of another shape: {a} and {b}")
        return getattr(operator, name)(left, right)

    def comparison(compare: Any, side: str) -> Any:
        """The function, which refuses operands of which the program's does not have all elements of the other.

        side: which one the program's is, "first", "second" or "" if it is not known.
        """

        def checked(*args: Any, **kwargs: Any) -> Any:
            operands = [*args, *kwargs.values()][:2]
            if len(operands) == 2 and "numpy" in sys.modules:
                a, b = map(_shape, reversed(operands) if side == "second" else operands)
                if a is not None and b is not None and a != b and not _covers(a, b, bool(side)):
                    raise fail(f"shapes differ: {a} and {b}")
            return compare(*args, **kwargs)

        return checked

    space.update(__operate__=operate, __comparison__=comparison)


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array, a frame, a list, or what pytest.approx holds; None where it has none."""
    import numpy

    value = getattr(value, "expected", value) if type(value).__module__.startswith("_pytest") else value
    try:
        return tuple(numpy.shape(value))
    except ValueError:  # ragged
        return None


def _covers(found: tuple[int, ...], expected: tuple[int, ...], known: bool) -> bool:
    """Whether an array of one shape has an element for each of the other. Of unknown operands the other is a number."""
    if 0 in found or 0 in expected or not (known or expected == ()):
        return False
    wide = (1,) * (len(found) - len(expected)) + expected
    return len(found) >= len(expected) and all(a == b or b == 1 for a, b in zip(found, wide, strict=True))
