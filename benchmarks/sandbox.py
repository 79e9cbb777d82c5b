"""Benchmark `sandbox`: verdicts a second on programs that do almost no work, on each rung this machine has."""

import os
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import median_and_range, write_results
from benchmarks.table import markdown
from lfpo.config.checks import Count, CountOrZero, check_ranges
from lfpo.config.errors import UserError
from lfpo.sandbox import Job, Sandbox, available_rungs, installed_libraries

PROGRAM = "def add(a, b):\n    return a + b + {} - {}\n"
TESTS = ("assert add(1, 2) == 3", "assert add(20, 22) == 42")
NUMPY = "import numpy as np\ndef add(a, b):\n    return int(np.add(a, b)) + {} - {}\n"
SUITE = "import unittest\nclass TestCases(unittest.TestCase):\n    def test_add(self): self.assertEqual(add(1, 2), 3)\n"


@dataclass
class BenchSandboxConfig:
    """Configuration of `python -m benchmarks sandbox`.

    verdicts: number in one timing. workers: verdicts at a time (0: the cores of this process).
    repeats: timings of each case, in turn; the table has the median.
    rungs: names of the rungs to measure (default: all that this machine has).
    output: folder for sandbox.json.
    """

    verdicts: Count = 100
    workers: CountOrZero = 0
    repeats: Count = 3
    rungs: list[str] = field(default_factory=list)
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        check_ranges(self)


def run_bench_sandbox(config: BenchSandboxConfig) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    rungs = config.rungs or [rung.name for rung in available_rungs() if rung.available]
    sandboxes = {
        rung: Sandbox(rung, workers=config.workers or None, libraries=installed_libraries(), unsafe="root")
        for rung in rungs
    }
    rows = [row for sandbox in sandboxes.values() for row in measure(sandbox, config)]
    _print(rows)
    return write_results(config, "sandbox", rows)


def cases(number: int) -> dict[str, Job]:
    """Right programs, whose source text differs with the number."""
    return {
        "two assertions": Job(PROGRAM.format(number, number), tests=TESTS),
        "with numpy": Job(NUMPY.format(number, number), tests=TESTS),
        "unittest, together": Job(PROGRAM.format(number, number), tests=[SUITE], unittest=True, together=True),
    }


def measure(sandbox: Sandbox, config: BenchSandboxConfig) -> list[dict[str, Any]]:
    """Verdicts a second of each case (median and slowest timing), and milliseconds of CPU time a verdict, summed over
    all processes. Raises UserError when a program fails."""
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
                raise UserError(
                    f"python -m benchmarks sandbox: a right program failed on rung {sandbox.rung}: {failed[0]}"
                )
    rows = []
    for name, taken in seconds.items():
        times = median_and_range(taken)
        row = {"rung": sandbox.rung, "case": name, "workers": sandbox.workers}
        row["verdicts_per_second"] = config.verdicts / times["seconds"]
        row["slowest"] = config.verdicts / times["seconds_most"]
        row["cpu_milliseconds"] = 1000 * cpu[name] / config.repeats / config.verdicts
        rows.append(row)
    return rows


def _cpu_seconds() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _print(rows: list[dict[str, Any]]) -> None:
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(f"Sandbox, {rows[0]['workers']} at a time (load {load})\n")
    columns = ("", "verdicts/s", "slowest", "CPU ms")
    numbers = ("verdicts_per_second", "slowest", "cpu_milliseconds")
    cells = [(row["rung"], [row["case"], *(f"{row[name]:.1f}" for name in numbers)]) for row in rows]
    print(markdown(columns, cells))
