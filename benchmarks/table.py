"""The benchmarks' tables, as Markdown: rows in groups, each with the group's name as the head of its first column."""

from collections.abc import Callable, Sequence
from typing import Any


def markdown(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Tables of rows (group, cells), one a group, with columns aligned over all groups. The first column holds names,
    the others numbers."""
    names = [group for group, _ in rows]
    every = [[name, *columns[1:]] for name in names] + [list(cells) for _, cells in rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (f"{c:{'>' if i else '<'}{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return f"| {' | '.join([first, *others])} |"

    lines: list[str] = []
    for group in dict.fromkeys(names):
        lines += ["", line([group, *columns[1:]]), f"| --- |{' ---: |' * (len(columns) - 1)}"]
        lines += [line(cells) for owner, cells in rows if owner == group]
    return "\n".join(lines[1:]) + "\n"


def rows_of_cells(
    rows: Sequence[dict[str, Any]], name: str, cells: Callable[[dict[str, Any]], list[str]], columns: int
) -> list[tuple[str, list[str]]]:
    """What `markdown` takes: `cells` of each row; of one that could not run, why. name: the field with its name."""
    return [
        (row["group"], [f"{row[name]}: {row['failed']}", *["-"] * (columns - 1)] if "failed" in row else cells(row))
        for row in rows
    ]
