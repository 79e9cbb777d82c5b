"""What training prints: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

SPARKS = "▁▂▃▄▅▆▇█"
RECENT = 6  # iterations in the live table
QUIET = 10.0  # seconds between two plain lines without an evaluation

# Columns of the live table: header, metrics key, format, least width of a terminal that shows it.
COLUMNS = (
    ("step", "step", "d", 0),
    ("reward", "reward", ".3f", 0),
    ("NFE", "nfe", ".1f", 0),
    ("steps", "steps", ".1f", 64),
    ("loss", "loss", ".4f", 50),
    ("grad", "grad_norm", ".2f", 58),
    ("alike", "frac_reward_zero_std", ".0%", 72),
    ("length", "completions/mean_length", ".1f", 80),
)


class Display:
    """Shows metrics as they come. Use as a context manager around training.

    total: number of iterations. console: standard output by default. quiet: without a terminal, least seconds between
    two lines; the first and last iteration and evaluations are always printed.
    """

    def __init__(self, total: int, console: Console | None = None, quiet: float = QUIET):
        # rich would wrap lines at 80 columns in a pipe or file.
        self.console = console or Console(width=None if sys.stdout.isatty() else 200)
        self.total, self.quiet, self.printed = total, quiet, float("-inf")
        columns = [BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn()]
        if self.console.width >= 60:
            columns = [TextColumn("training"), *columns, TextColumn("left"), TimeRemainingColumn()]
        self.progress = Progress(*columns, console=self.console, expand=True)
        self.task = self.progress.add_task("training", total=total)
        self.rewards: list[float] = []
        self.recent: list[dict[str, Any]] = []
        self.evaluations: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        self.live = (
            Live(self._panel(), console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        )

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def note(self, message: str) -> None:
        """Print a line, above the live panel if there is one."""
        self.console.print(message, markup=False, highlight=False)

    def update(self, metrics: dict[str, Any]) -> None:
        """Show one line of metrics.jsonl."""
        evaluated = _evaluations(metrics)
        for name, values in evaluated.items():
            first = self.evaluations.get(name, (values, values))[0]
            self.evaluations[name] = (first, values)
        if "reward" in metrics:
            self.rewards.append(metrics["reward"])
            self.recent = [*self.recent, metrics][-RECENT:]
        if self.live:
            self.progress.update(self.task, completed=metrics["step"])
            self.live.update(self._panel())
        elif evaluated or metrics["step"] in (1, self.total) or time.monotonic() - self.printed >= self.quiet:
            self.printed = time.monotonic()
            self.note(one_line(metrics, self.total))

    def _panel(self) -> Group:
        parts: list[Any] = [self.progress]
        if self.recent:
            parts += [_iterations(self.recent, self.console.width), self._reward_line()]
        held_out = Table.grid(padding=(0, 2))
        for name, (first, last) in self.evaluations.items():
            held_out.add_row(name, f"[bold]{_score(last)}[/]", "" if last is first else f"[dim]was {_score(first)}[/]")
        return Group(*parts, held_out)

    def _reward_line(self) -> Text:
        m = self.recent[-1]
        times = [m["time/rollout"], m["time/reward"], m["time/update"]]
        split = " / ".join(f"{100 * t / max(sum(times), 1e-9):.0f}%" for t in times)
        spark = sparkline(self.rewards, max(8, min(60, self.console.width - 20)))
        return Text.assemble("reward ", (spark, "green"), f"\nrollout / reward / update {split} of {sum(times):.1f} s")


def _iterations(rows: list[dict[str, Any]], width: int) -> Table:
    """The last iterations, newest at the bottom; a narrow terminal shows fewer columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown = [c for c in COLUMNS if width >= c[3]]
    for name, *_ in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for i, m in enumerate(rows):
        values = [format(m[key], form) if m.get(key) is not None else "" for _, key, form, _ in shown]
        table.add_row(*values, style="bold" if i == len(rows) - 1 else "dim")
    return table


def _evaluations(metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The values of the keys eval/SAMPLER/NAME as SAMPLER -> NAME -> value."""
    found: dict[str, dict[str, float]] = {}
    for key in sorted(metrics):
        if key.startswith("eval/"):
            found.setdefault(key.split("/")[1], {})[key.split("/")[2]] = metrics[key]
    return found


def _score(values: dict[str, float]) -> str:
    if "accuracy" in values:
        return f"{100 * values['accuracy']:.1f}% at {values['nfe']:.1f} NFE"
    return f"reward {values.get('reward', float('nan')):.3f} at {values['nfe']:.1f} NFE"


def sparkline(values: list[float], width: int = 40) -> str:
    """The last `width` values as block characters, lowest to highest."""
    values = values[-width:]
    low, high = min(values), max(values)
    return "".join(SPARKS[int((v - low) / ((high - low) or 1) * (len(SPARKS) - 1))] for v in values)


def one_line(metrics: dict[str, Any], total: int) -> str:
    """One iteration's metrics as a plain line."""
    parts = [f"step {metrics['step']}/{total}"]
    if "reward" in metrics:
        seconds = sum(metrics[f"time/{part}"] for part in ("rollout", "reward", "update"))
        parts.append(
            f"reward {metrics['reward']:.3f}  steps {metrics['steps']:.1f}  nfe {metrics['nfe']:.1f}  "
            f"loss {metrics['loss']:.4f}  grad {metrics['grad_norm']:.2f}  {seconds:.1f}s "
            f"(rollout {metrics['time/rollout']:.1f}, update {metrics['time/update']:.1f})"
        )
    parts += [f"{name}: {_score(values)}" for name, values in _evaluations(metrics).items()]
    return "  ".join(parts)
