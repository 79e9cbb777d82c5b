"""`Record`: one row of a data set, with checked access to its fields. Errors name the file and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lfpo.base.errors import UserError


@dataclass(frozen=True)
class Record:
    """One row of a data set.

    values: field -> value. where: `file:line`, or data set, split and row; error messages start with it.
    """

    values: Mapping[str, Any]
    where: str

    def __contains__(self, field: str) -> bool:
        return self.values.get(field) is not None

    def __getitem__(self, field: str) -> Any:
        """The value of a field. Raises UserError if it is missing or None."""
        if field not in self:
            found = ", ".join(map(str, self.values)) or "none"
            raise UserError(f"{self.where}: field {field!r} is missing (found: {found})")
        return self.values[field]

    def text(self, field: str) -> str:
        """The text of a field. Raises UserError if it is not text, or blank."""
        value = self[field]
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(field, "text")
        return value

    def integer(self, field: str, low: int, high: int) -> int:
        """An integer from low to high, given as a number or as text. Raises UserError for anything else."""
        value = self[field]
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(field, f"a whole number from {low} to {high}") from None
        if isinstance(value, bool) or number != (float(value) if isinstance(value, float) else number):
            raise self.wrong(field, f"a whole number from {low} to {high}")
        if not low <= number <= high:
            raise self.wrong(field, f"a whole number from {low} to {high}")
        return number

    def texts(self, field: str) -> list[str]:
        """A list of texts, not empty. Raises UserError for anything else."""
        value = self[field]
        items = list(value) if isinstance(value, list | tuple) else []
        if not items or not all(isinstance(item, str) for item in items):
            raise self.wrong(field, "a list of texts")
        return items

    def wrong(self, field: str, expected: str) -> UserError:
        """The error for a field that does not hold what is expected."""
        return UserError(f"{self.where}: field {field!r} must be {expected}, found {str(self[field])[:60]!r}")
