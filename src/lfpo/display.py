"""What training shows in a terminal: a live panel on a TTY, one plain line an iteration in a log file."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

SPARKS = "▁▂▃▄▅▆▇█"


class Display:
    """Shows metrics as they come. Use as a context manager around training.

    total: iterations in all. console: where to (standard output by default).
    """

    def __init__(self, total: int, console: Console | None = None):
        # A pipe or file has no width of its own; wrapping there would break one line into many.
        self.console = console or Console(width=None if sys.stdout.isatty() else 200)
        self.total = total
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
        )
        self.task = self.progress.add_task("training", total=total)
        self.rewards: list[float] = []
        self.latest: dict[str, Any] = {}
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
        """A line of its own, above the live panel."""
        self.console.print(message, markup=False, highlight=False)

    def update(self, metrics: dict[str, Any]) -> None:
        """Take one line of metrics.jsonl."""
        for name in sorted({k.split("/")[1] for k in metrics if k.startswith("eval/")}):
            values = {k.split("/")[2]: v for k, v in metrics.items() if k.startswith(f"eval/{name}/")}
            first = self.evaluations.get(name, (values, values))[0]
            self.evaluations[name] = (first, values)
        if "reward" in metrics:
            self.rewards.append(metrics["reward"])
        self.latest |= metrics
        if self.live:
            self.progress.update(self.task, completed=metrics["step"])
            self.live.update(self._panel())
        else:
            self.note(one_line(metrics, self.total))

    def _panel(self) -> Group:
        m, table = self.latest, Table.grid(padding=(0, 2))
        if "reward" in m:
            times = [m["time/rollout"], m["time/reward"], m["time/update"]]
            split = " / ".join(f"{100 * t / max(sum(times), 1e-9):.0f}%" for t in times)
            table.add_row("reward", f"[bold]{m['reward']:.3f}[/]", f"[green]{sparkline(self.rewards)}[/]")
            table.add_row("steps, NFE", f"{m['steps']:.1f}, {m['nfe']:.1f}", "a rollout")
            table.add_row("loss", f"{m['loss']:.4f}", f"gradient norm {m['grad_norm']:.2f}")
            table.add_row("time", split, f"rollout / reward / update of {sum(times):.1f} s")
        for name, (first, last) in self.evaluations.items():
            table.add_row(f"held out, {name}", _score(last), f"at the start {_score(first)}")
        return Group(self.progress, table)


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
    names = sorted({k.split("/")[1] for k in metrics if k.startswith("eval/")})
    for name in names:
        parts.append(
            f"{name}: {_score({k.split('/')[2]: v for k, v in metrics.items() if k.startswith(f'eval/{name}/')})}"
        )
    return "  ".join(parts)
