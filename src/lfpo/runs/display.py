"""What training prints: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from lfpo.base.environment import drop_output
from lfpo.base.progress import count, duration, seconds
from lfpo.base.terminal import Terminal
from lfpo.config.json import Json
from lfpo.core.observer import Observer
from lfpo.runs.results import evaluations, score_text

SPARKS = "▁▂▃▄▅▆▇█"
RECENT = 6  # iterations in the live table
QUIET = 10.0  # seconds between two plain lines, but for evaluations and the first and the last iteration
PHASE_LINES = 60.0  # seconds between two plain lines that tell the phase

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


class Output(Terminal):
    """Standard output, which may lose its reader (`| head`, a `tee` that ended) or its disk's space without ending the
    run."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            self._lost(f"standard output cannot be written ({error.strerror})")

    def on_broken_pipe(self) -> None:
        self._lost("nobody reads standard output any more")

    def _lost(self, why: str) -> None:
        self.quiet = True
        drop_output()
        with contextlib.suppress(OSError):  # standard error may be on the same disk
            print(f"{why}; the run goes on, and its folder says how", file=sys.stderr)

    def say(self, line: str) -> None:
        """Print a line as it is."""
        self.print(line, highlight=False, soft_wrap=True)


class Display:
    """Shows metrics as they come, and the phase in between. Use as a context manager around training.

    total: number of iterations. console: standard output by default. progress: the phase to show.
    evaluates_after(step): whether an evaluation follows an iteration, for the time that is left.
    """

    def __init__(
        self,
        total: int,
        console: Console | None = None,
        progress: Observer | None = None,
        evaluates_after: Callable[[int], bool] = lambda step: False,
    ):
        self.console = console or Output(columns=200)
        self.total, self.phase, self.evaluates_after = total, progress or Observer(), evaluates_after
        self.began = self.updated = time.monotonic()
        self.step, self.printed = 0, -math.inf
        self.seconds: list[float] = []  # of each iteration, without its evaluation
        self.evaluation = 0.0  # seconds of the last one
        self.rewards: list[float] = []  # of the iterations that had any
        self.recent: list[Json] = []
        self.evaluations: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        self.live: Live | None = None
        self.ended = threading.Event()
        self.lines: threading.Thread | None = None

    def __enter__(self) -> Display:
        self.began = self.updated = time.monotonic()
        self.step = self.phase.resumed_at
        if self.console.is_terminal:
            self.live = Live(get_renderable=self._panel, console=self.console, refresh_per_second=2)
            self.live.start()
        elif not self.console.quiet:
            self.lines = threading.Thread(target=self._tell_phases, daemon=True)
            self.lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.live:
            self.live.stop()
        if self.lines:
            self.lines.join()

    def note(self, message: str) -> None:
        """Print a line, above the live panel if there is one."""
        self.console.print(message, markup=False, highlight=False)

    def update(self, metrics: Json) -> None:
        """Show one line of metrics.jsonl."""
        now, evaluation = time.monotonic(), metrics.get("time/eval", 0.0)
        self.evaluation = evaluation or self.evaluation
        # Step 0 is the evaluation before training.
        if metrics["step"] > 0:
            self.seconds.append(max(0.0, now - self.updated - evaluation))
        self.step, self.updated = metrics["step"], now
        self.phase.begin("")
        evaluated = evaluations(metrics)
        for name, values in evaluated.items():
            # The first evaluation of each sampler stays beside the last one.
            self.evaluations[name] = (self.evaluations.get(name, (values,))[0], values)
        if "reward" in metrics:
            self.rewards += [metrics["reward"]] if math.isfinite(metrics["reward"]) else []
            self.recent = [*self.recent, metrics][-RECENT:]
        if self.live:
            self.live.refresh()
        elif evaluated or metrics["step"] in (1, self.total) or now - self.printed >= QUIET:
            self.printed = now
            left = self.left()
            self.note(one_line(metrics, self.total) + ("" if left is None else f"  {duration(left)} left"))

    def left(self) -> float | None:
        """Seconds until the run ends, by the mean of the last iterations; None before the first and after the last."""
        if not self.seconds or self.step >= self.total:
            return None
        recent = self.seconds[-10:]
        evaluations = sum(self.evaluates_after(step) for step in range(self.step + 1, self.total + 1))
        expected = sum(recent) / len(recent) * (self.total - self.step) + self.evaluation * evaluations
        return max(0.0, expected - (time.monotonic() - self.updated))

    def phase_line(self) -> str:
        parts = [f"iteration {min(self.step + 1, self.total)}/{self.total}", self.phase.phase, count(self.phase)]
        parts += [f"{duration(seconds(self.phase))} in this phase"]
        parts += [f"last reward {self.rewards[-1]:.3f}"] if self.rewards else []
        parts += [f"{duration(left)} left"] if (left := self.left()) is not None else []
        return "  ".join(part for part in parts if part)

    def _tell_phases(self) -> None:
        """Print the phase from time to time, until the run ends."""
        while not self.ended.wait(PHASE_LINES):
            if self.phase.phase:
                self.note(self.phase_line())

    def _panel(self) -> Group:
        parts: list[Any] = [_iterations(self.recent, self.console.width), self._reward_line()] if self.recent else []
        held_out = Table.grid(padding=(0, 2))
        for name, (first, last) in self.evaluations.items():
            before = "" if last is first else f"was {_score(first)}"
            held_out.add_row(Text(name), Text(_score(last), style="bold"), Text(before, style="dim"))
        return Group(self._bars(), *parts, held_out)

    def _bars(self) -> Table:
        """A bar of the run, and one of the phase."""
        width = self.console.width
        size = max(8, min(60, width - 52))
        left, times = self.left(), duration(time.monotonic() - self.began)
        times += f", {duration(left)} left" if left is not None and width >= 60 else ""
        bars, phase = Table.grid(*(Column(no_wrap=True) for _ in range(3)), padding=(0, 1)), self.phase
        run = ProgressBar(self.total, self.step, width=size)
        bars.add_row("training" if width >= 60 else "", run, f"{self.step}/{self.total}  {times}")
        if phase.phase:
            # The bar pulses while nothing can be counted: until the first rows are finished, hundreds of forwards may
            # run.
            waits = not phase.total or (phase.forwards > 0 and not phase.done)
            bar = ProgressBar(phase.total or 1, phase.done, width=size, pulse=waits)
            short = f"{phase.done}/{phase.total}" + (f", {phase.forwards} forwards" if phase.forwards else "")
            words = count(phase) if width >= 60 else short
            words += f", {duration(seconds(phase))}" if width >= 100 else ""
            bars.add_row(Text(phase.phase if width >= 60 else "", style="dim"), bar, Text(words, style="dim"))
        return bars

    def _reward_line(self) -> Text:
        m = self.recent[-1]
        times = [m["time/rollout"], m["time/reward"], m["time/update"]]
        split = " / ".join(f"{100 * t / max(sum(times), 1e-9):.0f}%" for t in times)
        spark = sparkline(self.rewards, max(8, min(60, self.console.width - 20)))
        return Text.assemble("reward ", (spark, "green"), f"\nrollout / reward / update {split} of {sum(times):.1f} s")


class ProgressLines:
    """A display that reports one line a logged step. steps/s, and the time left, are those since the line before."""

    def __init__(self, total: int, report: Callable[[str], None]):
        self.total, self.note = total, report
        self.last: tuple[int, float] | None = None

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, metrics: Json) -> None:
        step, now = metrics["step"], time.perf_counter()
        rate = ""
        if self.last is not None:
            steps, elapsed = step - self.last[0], now - self.last[1]
            rate = f"  {steps / elapsed:.2f} steps/s  {duration(elapsed / steps * (self.total - step))} left"
        self.last = step, now
        shown = {"loss": metrics.get("loss"), "held-out loss": metrics.get("eval/loss")}
        shown |= {"held-out preference accuracy": metrics.get("eval/preference_accuracy")}
        text = "".join(f"  {name} {value:.4f}" for name, value in shown.items() if value is not None)
        self.note(f"step {step}/{self.total}{text}{rate}")


def _iterations(rows: list[Json], width: int) -> Table:
    """The last iterations, newest at the bottom; a narrow terminal shows fewer columns."""
    shown = [c for c in COLUMNS if width >= c[3]]
    headers = [Column(name, justify="right", no_wrap=True) for name, *_ in shown]
    table = Table(*headers, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for i, m in enumerate(rows):
        values = [format(m[key], form) if m.get(key) is not None else "" for _, key, form, _ in shown]
        table.add_row(*values, style="bold" if i == len(rows) - 1 else "dim")
    return table


def _score(values: dict[str, float]) -> str:
    name = "" if "accuracy" in values else "reward "
    return f"{name}{score_text(values)} at {values['nfe']:.1f} NFE"


def sparkline(values: list[float], width: int = 40) -> str:
    """The last `width` finite values as block characters, lowest to highest."""
    finite = [v for v in values if math.isfinite(v)][-width:]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(SPARKS[int((v - low) / ((high - low) or 1) * (len(SPARKS) - 1))] for v in finite)


def one_line(metrics: Json, total: int) -> str:
    parts = [f"step {metrics['step']}/{total}"]
    if "reward" in metrics:
        seconds = sum(metrics[f"time/{part}"] for part in ("rollout", "reward", "update"))
        parts.append(
            f"reward {metrics['reward']:.3f}  steps {metrics['steps']:.1f}  nfe {metrics['nfe']:.1f}  "
            f"loss {metrics['loss']:.4f}  grad {metrics['grad_norm']:.2f}  {seconds:.1f}s "
            f"(rollout {metrics['time/rollout']:.1f}, update {metrics['time/update']:.1f})"
        )
    parts += [f"{name}: {_score(values)}" for name, values in evaluations(metrics).items()]
    return "  ".join(parts)
