"""What an evaluation prints: its progress, and its results as a table."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import rich.progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lfpo.base.progress import count, seconds
from lfpo.base.terminal import Terminal, fitted
from lfpo.config.eval import GROUPS
from lfpo.core.observer import Observer

LINE_SECONDS = 30.0
Result = Mapping[str, Any]


def open_console(quiet: bool) -> Console:
    """Standard output, 120 columns wide if it is a pipe or file."""
    return Terminal(quiet=quiet, columns=120)


@contextmanager
def progress(title: str, total: int, unit: str, console: Console) -> Iterator[Observer]:
    """Show a bar in a terminal, a plain line every LINE_SECONDS elsewhere, of what the observer is told that this
    yields: items that are done, and until then forwards. unit: the items' name."""
    printed = time.monotonic()
    bar = rich.progress.Progress(
        "{task.description}",
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        "left",
        rich.progress.TimeRemainingColumn(),
        "{task.fields[forwards]}",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(title, total=total, forwards="")

    def show() -> None:
        nonlocal printed
        forwards = f"{state.forwards} forwards of {state.rows} rows" if state.forwards else ""
        bar.update(task, completed=state.done, forwards=forwards)
        if not console.is_terminal and time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            left = f", about {seconds(state) * (total - state.done) / state.done:.0f} s left" if state.done else ""
            line = f"{title}: {count(state)}, {seconds(state):.0f} s{left}"
            console.print(line, highlight=False)

    state = Observer(show)
    state.begin(title, total, unit)
    with bar:
        yield state


def show(results: Sequence[Result], console: Console) -> None:
    """Print one line a task, and the mean of each group whose tasks all have results."""
    lines = [cells(r) for r in results]
    for name, mean in group_means(results).items():
        lines.append({"task": f"{name} (mean)", "accuracy (95 %)": f"{100 * mean:.1f}%"})
    table = Table(title=Text(results[0]["model"]), title_justify="left")
    for column in dict.fromkeys(c for line in lines for c in line):
        first = column == "task"
        table.add_column(column, justify="left" if first else "right", overflow="fold" if first else "ellipsis")
    for line in lines:
        table.add_row(*(Text(line.get(str(column.header), "")) for column in table.columns))
    console.print(fitted(table, console))


def cells(r: Result) -> dict[str, str]:
    """Column -> text for one result."""
    measure = "accuracy" if "accuracy" in r else "reward"
    shown = {"task": r["task"], "n": str(r["n"]), f"{measure} (95 %)": "not judged"}
    if (mean := r[measure]) is not None:
        values = [mean, *(r["interval"] or [])]
        if measure == "accuracy":
            texts = [f"{100 * mean:.1f}%", *(f"{100 * value:.1f}" for value in values[1:])]
        else:
            texts = [f"{value:.3f}" for value in values]
        interval = f" ({' to '.join(texts[1:])})" if len(texts) > 1 else ""
        shown[f"{measure} (95 %)"] = texts[0] + interval
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
    accuracy = {r["task"]: r["accuracy"] for r in results if r.get("accuracy") is not None}
    complete = {name: tasks for name, tasks in GROUPS.items() if accuracy.keys() >= set(tasks)}
    return {name: sum(accuracy[task] for task in tasks) / len(tasks) for name, tasks in complete.items()}
