"""Reads columns of whole numbers, in whatever type a data file gave them."""

import re
from collections.abc import Iterable

from lfpo.config.errors import UserError

_WHOLE = re.compile(r"\s*([-+]?[0-9]+)(?:\.0*)?\s*")


def wrong_column(name: str, expected: str, value: object) -> UserError:
    """The error of a column whose value is not what is expected."""
    found = repr(value)
    return UserError(f"column {name!r}: expected {expected}, found {found if len(found) <= 80 else found[:77] + '...'}")


def whole_number(name: str, value: object) -> int:
    """The value of `7`, `7.0`, "7" or "7.0". Raises UserError, which names the column, for anything else."""
    if isinstance(value, str):
        if match := _WHOLE.fullmatch(value):
            return int(match[1])
    elif not isinstance(value, bool):
        try:
            number = int(value)  # type: ignore[call-overload]
            if number == value:
                return int(number)
        except (TypeError, ValueError, OverflowError):
            pass
    raise wrong_column(name, "a whole number", value)


def whole_numbers(name: str, value: object) -> list[int]:
    """The numbers of a list, whatever spells them, or of a text such as `[3, 4]`. Raises UserError as whole_number."""
    parts = re.findall(r"[^\s,;'\"\[\]()]+", value) if isinstance(value, str) else value
    try:
        found = [whole_number(name, part) for part in parts] if isinstance(parts, Iterable) else []
    except UserError:
        found = []
    if not found:
        raise wrong_column(name, "whole numbers, such as [3, 4]", value)
    return found
