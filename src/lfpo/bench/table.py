"""The benchmarks' tables: rows in groups, columns aligned over all groups, no cell truncated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lfpo.base.files import replace_file


def print_groups(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], caption: str = ""
) -> None:
    """Print rows (group, cells), one table a group. The first column holds names, the others numbers."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *(cells for _, cells in rows), strict=True)]
    console.width = max(console.width, sum(widths) + len(widths))  # rich would truncate; a terminal wraps
    console.print(f"[bold]{title}[/]" + (f" [dim]({caption})[/]" if caption else ""))
    for group in dict.fromkeys(group for group, _ in rows):
        table = Table(title=f"\n{group}", title_justify="left", box=None, collapse_padding=True, pad_edge=False)
        for i, (name, width) in enumerate(zip(columns, widths, strict=True)):
            table.add_column(name, justify="right" if i else "left", min_width=width, no_wrap=True)
        for _, cells in (row for row in rows if row[0] == group):
            table.add_row(*cells)
        console.print(table)


def write_markdown(path: Path, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """The same tables for a page of documentation: each group's name is the head of its first column."""
    lines: list[str] = []
    for group in dict.fromkeys(group for group, _ in rows):
        lines += ["", f"| {' | '.join([group, *columns[1:]])} |", f"| --- |{' ---: |' * (len(columns) - 1)}"]
        lines += [f"| {' | '.join(cells)} |" for owner, cells in rows if owner == group]
    replace_file(path, "\n".join(lines[1:]) + "\n")


def rows_of_cells(
    rows: Sequence[dict[str, Any]], name: str, cells: Callable[[dict[str, Any]], list[str]], columns: int
) -> list[tuple[str, list[str]]]:
    """What `print_groups` takes: `cells` of each row; of one that could not run, why. name: the field with its name."""
    return [
        (row["group"], [f"{row[name]}: {row['failed']}", *["-"] * (columns - 1)] if "failed" in row else cells(row))
        for row in rows
    ]
