"""Progress of an evaluation: a bar in a terminal, a plain line every LINE_SECONDS elsewhere."""

from __future__ import annotations

import time

import rich.progress
from rich.console import Console

LINE_SECONDS = 30.0


class Progress:
    """Use as a context manager. total: number of items; unit: their name."""

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
