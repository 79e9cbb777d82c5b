"""What an evaluation prints: its progress, and its results as a table, or as lines in a narrow terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rich.progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lfpo.eval.settings import GROUPS

NARROW = 76
LINE_SECONDS = 30.0
Result = Mapping[str, Any]


def open_console(quiet: bool) -> Console:
    """Standard output, 120 columns wide if it is a pipe or file."""
    return Console(quiet=quiet, width=None if sys.stdout.isatty() else 120)


class Progress:
    """A bar in a terminal, a plain line every LINE_SECONDS elsewhere. Use as a context manager.

    total: number of items; unit: their name.
    """

    def __init__(self, title: str, total: int, unit: str, console: Console):
        self.title, self.total, self.unit, self.console = title, total, unit, console
        self.done = 0
        self.started = self.printed = time.perf_counter()
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("left"),
            rich.progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(title, total=total)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def advance(self, count: int) -> None:
        self.done += count
        self.bar.update(self.task, completed=self.done)
        now = time.perf_counter()
        if not self.console.is_terminal and now - self.printed >= LINE_SECONDS:
            self.printed = now
            left = (now - self.started) * (self.total - self.done) / max(1, self.done)
            self.console.print(
                f"{self.title}: {self.done} of {self.total} {self.unit}, {now - self.started:.0f} s, "
                f"about {left:.0f} s left",
                markup=False,
                highlight=False,
            )


def show(results: Sequence[Result], console: Console) -> None:
    """Print one line a task, and the mean of each group whose tasks all have results."""
    lines = [cells(r) for r in results]
    for name, mean in group_means(results).items():
        lines.append({"task": f"{name} (mean)", "accuracy (95 %)": f"{100 * mean:.1f}%"})
    columns = list(dict.fromkeys(c for line in lines for c in line))
    if console.width < NARROW:
        for line in lines:
            console.print(Text("  ".join(f"{k} {v}" if k != "task" else v for k, v in line.items())))
        return
    table = Table(title=Text(results[0]["model"]), title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == "task" else "right", overflow="fold")
    for line in lines:
        table.add_row(*(Text(line.get(column, "")) for column in columns))
    console.print(table)


def cells(r: Result) -> dict[str, str]:
    """Column -> text for one result."""
    share = "not judged"
    if r["accuracy"] is not None:
        low, high = r["interval"]
        share = f"{100 * r['accuracy']:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
    shown = {"task": r["task"], "n": str(r["n"]), "accuracy (95 %)": share}
    if r["pass_at_k"]:
        k = max(r["pass_at_k"], key=int)
        shown[f"pass@{k}"] = f"{100 * r['pass_at_k'][k]:.1f}%"
    if r["not_judged"]:
        shown["not judged"] = str(r["not_judged"])
    return {
        **shown,
        "steps": f"{r['mean_steps']:.1f}",
        "NFE": f"{r['mean_nfe']:.1f}",
        "length": f"{r['mean_length']:.1f}",
        "tokens/s": f"{r['tokens_per_second']:.0f}",
    }


def group_means(results: Sequence[Result]) -> dict[str, float]:
    """The mean accuracy of each group whose tasks all have results."""
    accuracy = {r["task"]: r["accuracy"] for r in results}
    groups = {name: [accuracy.get(task) for task in tasks] for name, tasks in GROUPS.items()}
    return {
        name: sum(v for v in values if v is not None) / len(values)
        for name, values in groups.items()
        if None not in values
    }
