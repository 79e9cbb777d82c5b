"""Long training with a stop and a resume every few minutes: memory, open files and processes must not grow."""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path

from drill.harness import Child, Drill, Outcome, Tally, start, train_arguments, wait_for
from lfpo.runs.directory import Run

RESUMES = 2  # at least
STRETCH = 300.0  # seconds between two resumes
SLOPE = 2.0  # MB a minute that count as flat
SETTLED = 0.4  # share of a stretch that is left out, while allocator and caches fill
SHORTEST = 60.0  # seconds; the slope of shorter stretches is not judged


def soak(drill: Drill) -> list[Outcome]:
    """One run, stopped by SIGTERM and resumed several times; memory and open files are read once a second."""
    tally, seconds = Tally("soak"), 60 * drill.settings.soak_minutes
    if not seconds:
        return []
    stretch, folder = min(STRETCH, seconds / RESUMES), drill.folder("soak")
    arguments = train_arguments(folder, max_steps=1_000_000, eval_steps=50, save_steps=25, log_completions="true")
    slopes: list[float] = []
    files: list[tuple[int, int]] = []
    until, lives = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        before = Run(folder).read_metrics()[-1]["step"] if lives else 0
        child = start([*arguments, *(["--resume"] if lives else [])])
        if not wait_for(lambda: (folder / "metrics.jsonl").exists(), child):
            tally.add(f"it ended: {child.said()}")
            break
        samples = _watch(child, min(stretch, max(5.0, until - time.monotonic())))
        os.kill(child.process.pid, signal.SIGTERM)
        code, session = child.wait(), child.process.pid
        lives += 1
        steps = [row["step"] for row in Run(folder).read_metrics()]
        wrong = ""
        if code != 128 + signal.SIGTERM:
            wrong = f"exit code {code}: {child.said()[-500:]}"
        elif steps != list(range(len(steps))) or steps[-1] <= before:
            wrong = f"metrics.jsonl has gaps or did not grow: {len(steps)} lines up to {steps[-1]}"
        elif left := _of_session(session):
            wrong = f"{len(left)} processes left"
        tally.add(wrong)
        kept = samples[int(SETTLED * len(samples)) :]
        if len(kept) > 4:
            if kept[-1][0] * 60 >= SHORTEST:
                slopes.append(slope([s[0] for s in kept], [s[1] for s in kept]))
            files.append((samples[int(SETTLED * len(samples))][2], samples[-1][2]))
    steep = statistics.median(slopes) if slopes else 0.0
    if steep > SLOPE:
        tally.failures.append(f"memory grows by {steep:.1f} MB a minute")
    if any(last > first + 2 for first, last in files):
        tally.failures.append(f"open files grow: {files}")
    done = len(Run(folder).read_metrics()) - 1
    open_files = max((last for _, last in files), default=0)
    memory = f"memory {steep:+.2f} MB a minute (median of the stretches)" if slopes else "too short to judge memory"
    tally.note = (
        f"{drill.settings.soak_minutes:g} min, {done} iterations, {lives} stretches; {memory}, "
        f"{open_files} open files, no process left"
    )
    return [tally.outcome()]


def _watch(child: Child, seconds: float) -> list[tuple[float, float, int]]:
    """(minutes, resident MB, open files) of a process, once a second."""
    begun, samples = time.monotonic(), []
    process = Path(f"/proc/{child.process.pid}")
    while (now := time.monotonic() - begun) < seconds and child.process.exitcode is None:
        pages = int((process / "statm").read_text().split()[1])
        samples.append((now / 60, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(process / "fd"))))
        time.sleep(min(1.0, seconds / 20))
    return samples


def slope(x: list[float], y: list[float]) -> float:
    """The slope of the least-squares line."""
    return statistics.linear_regression(x, y).slope


def _of_session(session: int) -> list[int]:
    """Ids of the processes of a session (each run leads its own session)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
