"""Standard output of a command: names as they are written, and tables whose numbers are never cut."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

FOLDED = 14  # least width of a column that may break words


class Terminal(Console):
    """Reads no markup in text, so that a name may hold square brackets. Raises BrokenPipeError where nobody reads;
    rich's own class ends the process, with exit code 1. A character that the output's encoding lacks is written as its
    number. columns: width where the output is no terminal; rich would wrap lines at 80 in a pipe or file."""

    def __init__(self, columns: int | None = None, **options: Any):
        super().__init__(markup=False, emoji=False, **options)
        if columns is not None and not _is_terminal(self.file):
            self.width = columns
        strict = not getattr(self.file, "closed", False) and getattr(self.file, "errors", None) == "strict"
        if strict and hasattr(self.file, "reconfigure"):
            self.file.reconfigure(errors="backslashreplace")

    def on_broken_pipe(self) -> None:
        raise


def _is_terminal(file: Any) -> bool:
    """Whether output goes to a terminal, and not to a pipe, a file, or what a script has put into its place."""
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):  # ValueError: it is closed
        return False


def fitted(table: Table, console: Console) -> RenderableType:
    """The table, with columns as wide as their longest words, which rich alone may cut; rows one under the other where
    these do not fit. A column with overflow "fold" may break words."""
    wide = console.options.update(max_width=10_000)
    sizes = [[Measurement.get(console, wide, c) for c in (column.header, *column.cells)] for column in table.columns]
    most = [max(size.maximum for size in column) for column in sizes]
    words = [max(size.minimum for size in column) for column in sizes]
    least = [
        m if column.no_wrap else min(w, FOLDED) if column.overflow == "fold" else w
        for column, m, w in zip(table.columns, most, words, strict=True)
    ]
    room = console.width - (Measurement.get(console, wide, table).maximum - sum(most))  # without padding and lines
    if sum(least) > room:
        return stacked(table)
    widths, limit = most, max(most)
    while sum(widths) > room:
        limit -= 1
        widths = [max(low, min(high, limit)) for low, high in zip(least, most, strict=True)]
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    return table


def stacked(table: Table) -> Group:
    """A table's rows one under the other: the first cell, and below it each other one with the name of its column."""
    lines: list[RenderableType] = [_text(table.title)] if table.title else []
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        lines += [_text(first)] if first else []
        for column, cell in zip(table.columns[1:], others, strict=True):
            if cell:
                named = [column.header, " "] if column.header else []
                lines.append(Padding(Text.assemble(*map(_text, [*named, cell])), (0, 0, 0, 2), expand=False))
    return Group(*lines, *([_text(table.caption)] if table.caption else []))


def _text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)
