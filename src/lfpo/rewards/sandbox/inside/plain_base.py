"""Which built-in value an object holds, and which types are built from what their own pickling gives."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BASES: tuple[Any, ...] = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
REDUCED = {
    *("builtins.complex", "builtins.range", "builtins.slice", "fractions.Fraction", "decimal.Decimal"),
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("collections.deque", "collections.Counter", "collections.OrderedDict", "collections.defaultdict"),
    *("pathlib.PosixPath", "pathlib.PurePosixPath"),
}
"""Types that are built from the arguments, items and pairs of their own pickling."""


class NotAValue(Exception):
    """The object, or something in it, cannot be sent."""


def plain_base(value: Any) -> Any:
    """The built-in value in an instance of a subclass that keeps the `__eq__` of its base, without calling its methods.

    Raises NotAValue if it has none.
    """
    base = next((b for b in BASES if isinstance(value, b) and type(value).__eq__ is b.__eq__), None)
    if base is None:
        raise NotAValue(f"a {type(value).__name__} is not plain data")
    if base in (int, float, str, bytes):
        of: dict[Any, Callable[[Any], Any]] = {int: int.__pos__, float: float.__pos__, str: str.__str__}
        return of.get(base, bytes.__bytes__)(value)
    if base is complex:
        return complex.__pos__(value)
    return dict(dict.items(value)) if base is dict else base(base.__iter__(value))
