"""Comparison of a call's result with the expected value, and stricter versions of numpy's comparisons for suites.

The table of cases is in docs/sandbox.md.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FAMILIES = (dict, (set, frozenset), (bytes, bytearray), list, tuple)
"""Types whose instances can be equal to each other in Python."""


def same(value: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Python's equality, except: True is not 1, nan equals nan, and finite floats may differ by the tolerance.

    These rules also hold inside containers. The tolerance is relative if the expected value is above 1, else absolute.
    """
    value, expected = _python_number(value), _python_number(expected)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float | complex) and isinstance(expected, int | float | complex):
        return _same_number(value, expected, tolerance)
    if type(value) is not type(expected) and not _same_family(value, expected):
        return False
    if isinstance(value, dict):
        return _same_dict(value, expected, tolerance)
    if isinstance(value, set | frozenset):
        return len(value) == len(expected) and _keys_match(value, expected)
    if isinstance(value, list | tuple) or type(value).__name__ == "deque":
        return _same_items(value, expected, tolerance)
    module = type(value).__module__.partition(".")[0]
    if module == "numpy":
        return value.shape == expected.shape and _same_items(value.ravel(), expected.ravel(), tolerance)
    if module == "pandas":
        return _same_pandas(value, expected, tolerance)
    return bool(value == expected) or (value != value and expected != expected)


def _python_number(value: Any) -> Any:
    """A numpy scalar as a Python value."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _same_number(value: Any, expected: Any, tolerance: float) -> bool:
    if value == expected:
        return True
    if isinstance(value, complex) or isinstance(expected, complex):
        a, b = complex(value), complex(expected)
        return _same_number(a.real, b.real, tolerance) and _same_number(a.imag, b.imag, tolerance)
    if isinstance(value, int) and isinstance(expected, int):
        return False
    if value != value or expected != expected:
        return value != value and expected != expected
    infinite = (float("inf"), float("-inf"))
    if value in infinite or expected in infinite:
        return False  # equal infinities are equal above; no tolerance reaches infinity
    try:
        return abs(value - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an int too large for a float
        return False


def _same_family(value: Any, expected: Any) -> bool:
    return any(isinstance(value, family) and isinstance(expected, family) for family in _FAMILIES)


def _same_items(value: Any, expected: Any, tolerance: float) -> bool:
    return len(value) == len(expected) and all(same(a, b, tolerance) for a, b in zip(value, expected, strict=True))


def _same_dict(value: Any, expected: Any, tolerance: float) -> bool:
    if len(value) != len(expected) or not _keys_match(value, expected):
        return False
    ordered = type(value).__name__ == type(expected).__name__ == "OrderedDict"
    if ordered and not _same_items(list(value), list(expected), 0.0):
        return False
    return all(same(value[key], expected[key], tolerance) for key in expected)


def _keys_match(value: Any, expected: Any) -> bool:
    """Whether every expected key or member is there, with True and 1 as different ones."""
    found = {key: key for key in value}
    return all(key in found and same(found[key], key) for key in expected)


def _same_pandas(value: Any, expected: Any, tolerance: float) -> bool:
    """Labels are compared without tolerance."""
    if not hasattr(value, "__len__"):
        return value is expected or bool(value == expected)  # NaT and NA are single objects
    (labels, values), (expected_labels, expected_values) = _parts(value), _parts(expected)
    return same(labels, expected_labels) and same(values, expected_values, tolerance)


def _parts(value: Any) -> tuple[list[Any], list[Any]]:
    """Labels and values of a frame, a series, an index or an array."""
    if type(value).__name__ == "DataFrame":
        columns = [list(value.iloc[:, number]) for number in range(value.shape[1])]
        return [list(value.columns), list(value.index)], columns
    return [list(value.index)] if type(value).__name__ == "Series" else [], list(value)


# A suite's comparisons with numpy. Broadcasting would let an empty result, or one number, equal any expected array.
_ARRAY_COMPARISONS = ("allclose", "isclose", "array_equiv")
_ARRAY_ASSERTIONS = (
    *("assert_allclose", "assert_almost_equal", "assert_approx_equal", "assert_array_almost_equal"),
    *("assert_array_equal", "assert_array_less", "assert_equal"),
)


def refuse_broadcasting(numpy: Any) -> None:
    """Have numpy's comparisons refuse operands of different shapes, unless the second is a number.

    A refused comparison returns False; a refused assertion raises AssertionError. Operators raise ValueError if
    an empty result meets an array of another shape.
    """
    from . import extensions

    class Empty(numpy.ndarray):
        __module__ = "numpy"

        def __array_ufunc__(self, function: Any, method: str, *operands: Any, **options: Any) -> Any:
            if len({numpy.shape(operand) for operand in operands} - {()}) > 1:
                raise ValueError("an empty array meets an array of another shape")
            return getattr(function, method)(*map(numpy.asarray, operands), **options)

    extensions.empty_type = Empty
    for name in _ARRAY_COMPARISONS:
        setattr(numpy, name, _strict(numpy, getattr(numpy, name), is_assertion=False))
    for name in _ARRAY_ASSERTIONS:
        setattr(numpy.testing, name, _strict(numpy, getattr(numpy.testing, name), is_assertion=True))


def _strict(numpy: Any, compare: Callable[..., Any], is_assertion: bool) -> Callable[..., Any]:
    def strict(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> Any:
        if _comparable(numpy, actual, desired):
            return compare(actual, desired, *args, **kwargs)
        if is_assertion:
            raise AssertionError(f"shapes differ: {numpy.shape(actual)} and {numpy.shape(desired)}")
        return numpy.False_

    return strict


def _comparable(numpy: Any, actual: Any, desired: Any) -> bool:
    try:
        shapes = numpy.shape(actual), numpy.shape(desired)
    except ValueError:  # ragged: numpy's own function decides
        return True
    return shapes[0] == shapes[1] or (shapes[1] == () and 0 not in shapes[0])
