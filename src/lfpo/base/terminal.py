"""Standard output of a command: names as they are written, and tables whose numbers are never cut."""

from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

FOLDED = 14  # least width of a column that may break words


class Terminal(Console):
    """Reads no markup in text, so that a name may hold square brackets. Raises BrokenPipeError where nobody reads;
    rich's own class ends the process, with exit code 1. A character that the output's encoding lacks is written as its
    number. columns: width where the output is no terminal; rich would wrap lines at 80 in a pipe or file."""

    def __init__(self, columns: int | None = None, **options: Any):
        super().__init__(markup=False, emoji=False, **options)
        if columns is not None and not self.is_terminal:
            self.width = columns
        strict = not getattr(self.file, "closed", False) and getattr(self.file, "errors", None) == "strict"
        if strict and hasattr(self.file, "reconfigure"):
            self.file.reconfigure(errors="backslashreplace")

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """As rich's, but what is wider than the terminal is not cut off."""
        super().print(*objects, crop=crop, **options)

    def on_broken_pipe(self) -> None:
        raise


def fitted(table: Table, console: Console) -> Table:
    """The table, with columns at least as wide as their longest words, which rich alone may cut. A column with overflow
    "fold" may break words of more than FOLDED characters."""
    wide = console.options.update(max_width=10_000)
    room = console.width - Measurement.get(console, wide, table).maximum  # for all columns at their greatest widths
    for column in table.columns:
        sizes = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
        most = max(size.maximum for size in sizes)
        word = most if column.no_wrap else max(size.minimum for size in sizes)
        column.min_width = min(word, FOLDED) if column.overflow == "fold" else word
        room += most - column.min_width
    if room < 0:  # even at their least, where rich would leave out whole columns
        table.width = console.width - room
    return table
