"""`lfpo bench sandbox`: verdicts a second on programs that take no time of their own, on each rung of this machine."""

from __future__ import annotations

import json
import os
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lfpo.base.checks import at_least_one, not_negative
from lfpo.base.config import to_dict
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError
from lfpo.base.files import replace_file
from lfpo.base.measure import spread
from lfpo.rewards.sandbox import Job, Sandbox, available_rungs, installed_libraries

PROGRAM = "def add(a, b):\n    return a + b + {} - {}\n"
TESTS = ("assert add(1, 2) == 3", "assert add(20, 22) == 42")
NUMPY = "import numpy as np\ndef add(a, b):\n    return int(np.add(a, b)) + {} - {}\n"
SUITE = "import unittest\nclass TestCases(unittest.TestCase):\n    def test_add(self): self.assertEqual(add(1, 2), 3)\n"


@dataclass
class BenchSandboxConfig:
    """Configuration of `lfpo bench sandbox`.

    verdicts: a timing. workers: verdicts at a time (0: the cores of this process). repeats: timings of each case, taken
        in turn; the median counts.
    rungs: which of the ladder (all that this machine has, when left out).
    output: folder for sandbox.json.
    """

    verdicts: int = 100
    workers: int = 0
    repeats: int = 3
    rungs: list[str] = field(default_factory=list)
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        at_least_one(self, "verdicts", "repeats")
        not_negative(self, "workers")


def run_bench_sandbox(config: BenchSandboxConfig, console: Console | None = None) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    console = console or Console()
    rungs = config.rungs or [rung.name for rung in available_rungs() if rung.available]
    sandboxes = {
        rung: Sandbox(rung, workers=config.workers or None, libraries=installed_libraries(), unsafe=True)
        for rung in rungs
    }
    rows = [row for sandbox in sandboxes.values() for row in measure(sandbox, config)]
    _print(rows, console)
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sandbox.json"
    result = {"config": to_dict(config), "rows": rows, "environment": describe_environment(), "versions": versions()}
    replace_file(path, json.dumps(result, indent=1) + "\n")
    return path


def cases(number: int) -> dict[str, Job]:
    """Right programs, a different one for each number."""
    return {
        "two assertions": Job(PROGRAM.format(number, number), tests=TESTS),
        "with numpy": Job(NUMPY.format(number, number), tests=TESTS),
        "unittest, together": Job(PROGRAM.format(number, number), tests=[SUITE], unittest=True, together=True),
    }


def measure(sandbox: Sandbox, config: BenchSandboxConfig) -> list[dict[str, Any]]:
    """Verdicts a second, and CPU time a verdict of all processes, for each case."""
    seconds: dict[str, list[float]] = {name: [] for name in cases(0)}
    cpu = dict.fromkeys(seconds, 0.0)
    for _ in range(config.repeats):
        for name in seconds:
            jobs = [cases(i)[name] for i in range(config.verdicts)]
            before, begin = _cpu_seconds(), time.perf_counter()
            verdicts = sandbox.run(jobs)
            seconds[name].append(time.perf_counter() - begin)
            cpu[name] += _cpu_seconds() - before
            if failed := [verdict.reason for verdict in verdicts if not verdict.passed]:
                raise UserError(f"lfpo bench sandbox: a right program failed on rung {sandbox.rung}: {failed[0]}")
    return [
        {
            "rung": sandbox.rung,
            "case": name,
            "workers": sandbox.workers,
            "verdicts_per_second": config.verdicts / spread(taken)[0],
            "slowest": config.verdicts / spread(taken)[2],
            "cpu_milliseconds": 1000 * cpu[name] / config.repeats / config.verdicts,
        }
        for name, taken in seconds.items()
    ]


def _cpu_seconds() -> float:
    """Of this process and all that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _print(rows: list[dict[str, Any]], console: Console) -> None:
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    title = f"sandbox, {rows[0]['workers']} at a time (load {load})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("rung", "case"):
        table.add_column(name)
    for name in ("verdicts/s", "slowest", "CPU ms"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = (row["verdicts_per_second"], row["slowest"], row["cpu_milliseconds"])
        table.add_row(row["rung"], row["case"], *(f"{number:.1f}" for number in numbers))
    console.print(table)
