"""Runs that are killed or stopped, then resumed: the end must equal that of an uninterrupted run."""

import contextlib
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from drill.harness import EVERY, ITERATIONS, Child, Drill, Row, difference, progress, reaches, saved_step, wait_for
from drill.inside import Fault
from lfpo.config.errors import UserError
from lfpo.runs.directory import Run
from lfpo.sandbox import Job, Limits, Sandbox, available_rungs

GRACE = 10.0  # seconds that a scheduler waits between SIGTERM and SIGKILL
TRIES = 20  # runs that may end before their fault happens
STRETCH = 300.0  # seconds between two resumes of the soak; a shorter soak has two stretches
SLOPE = 2.0  # MB a minute that count as flat
SETTLED = 0.4  # share of a stretch that is left out, while allocator and caches fill
SHORTEST = 60.0  # seconds; the slope of shorter stretches is not judged


def killed(drill: Drill) -> list[Row]:
    """SIGKILL while writing a checkpoint, evaluating or scoring rewards, and at any moment, in turn."""
    names = ("writing a checkpoint", "an evaluation", "reward scoring", "any moment")
    rows = [Row(f"SIGKILL, {name}", "bit-identical end") for name in names]
    for number in range(drill.settings.kills):
        row, place = rows[number % 4], ("checkpoint", "evaluation", "reward", "")[number % 4]
        if place:
            fault = Fault("kill", place, drill.rng.randint(1, drill.visits[place]))
            folder, child = drill.run(f"killed-{place}", fault)
            code = child.wait()
        else:
            folder, child = _at_random_moment(drill, "killed-any", -1)
            code = _send(child, signal.SIGKILL)
        missed = "" if code == -signal.SIGKILL else f"{folder.name}: ended with {code} before the kill"
        row.add(missed, None if missed else drill.recover(folder))
    return [row for row in rows if row.tried]


def _at_random_moment(drill: Drill, name: str, first: int) -> tuple[Path, Child]:
    """A run at a random iteration from `first` on (-1: as it starts), a random part of a second into it."""
    for _ in range(TRIES):
        folder, child = drill.run(name)
        wanted = drill.rng.randrange(first, ITERATIONS - 1)
        reaches(folder, wanted, child)
        time.sleep(drill.rng.random() * 0.3)
        if progress(folder) < ITERATIONS and child.process.exitcode is None:
            return folder, child
        child.wait()
    raise UserError(f"{TRIES} runs ended before they could be stopped: {child.said()}")


def _send(child: Child, number: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.process.pid, number)
    return child.wait()


def stopped(drill: Drill) -> list[Row]:
    """SIGTERM and SIGINT at random moments: a checkpoint of all finished iterations within GRACE, exit code 128 + N."""
    row, twice, slowest = Row("SIGTERM or SIGINT"), Row("a second signal"), 0.0
    for number in range(drill.settings.stops):
        which = (signal.SIGTERM, signal.SIGINT)[number % 2]
        folder, child = _at_random_moment(drill, "stopped", 0)
        before, sent = progress(folder), time.monotonic()
        code = _send(child, which)
        took, saved = time.monotonic() - sent, saved_step(folder)
        slowest = max(slowest, took)
        # After a signal in the last moments, when everything is saved, the run may end with code 0.
        ended = code == 128 + which or (code == 0 and progress(folder) == ITERATIONS)
        if not ended or took > GRACE or saved < before:
            row.add(f"{folder.name}: exit code {code}, {took:.1f} s, {saved} of {before} saved: {child.said()}")
        else:
            row.add("", drill.recover(folder))
    row.note = f"saved and ended within {slowest:.1f} s; exit code 128 + N; bit-identical end"
    if drill.settings.stops:  # a second signal ends the process at once; the last checkpoint stays
        folder, child = drill.run("twice")
        reaches(folder, EVERY, child)
        sent = time.monotonic()
        os.kill(child.process.pid, signal.SIGTERM)
        code = _send(child, signal.SIGTERM)
        took = time.monotonic() - sent
        twice.note = f"ended within {took:.1f} s; bit-identical end"
        # Two signals sent at once may arrive as one, which is an ordinary stop.
        late = code not in (-signal.SIGTERM, 128 + signal.SIGTERM) or took > GRACE
        twice.add(f"exit code {code} after {took:.1f} s" if late else "", None if late else drill.recover(folder))
    return [row, twice]


def repeated(drill: Drill) -> list[Row]:
    """The same seed twice, the second time with a wall clock that jumps; programs judged by one worker and by two."""
    rows = [Row("the same seed again", "the same bits"), Row("the clock jumps by a day", "the same bits")]
    for row, fault in zip(rows, (None, Fault("clock")), strict=True):
        folder, child = drill.run("repeated", fault)
        row.add(child.wrong_end(0) or difference(drill.unbroken, folder))
    workers = Row("1 and 2 sandbox workers", "the same verdicts")
    if no_sandbox():
        workers.note = no_sandbox()
        return [*rows, workers]
    bodies = ["return 3", "return 4", "raise KeyError('k')", "while True: pass", "import os; os._exit(0)", "return 3"]
    jobs = [Job(f"def f():\n    {body}", tests=["assert f() == 3"]) for body in bodies]
    found = [
        [(verdict.passed, verdict.reason) for verdict in Sandbox(limits=Limits(seconds=2.0), workers=n).run(jobs)]
        for n in (1, 2)
    ]
    right = [passed for passed, _ in found[0]] == [True, False, False, False, False, True]
    return [*rows, workers.add("" if right and found[0] == found[1] else f"{found}")]


def no_sandbox() -> str:
    confined = any(rung.available for rung in available_rungs() if rung.name != "limits")
    return "" if confined else "not tried: no sandbox here (lfpo doctor says why)"


def soak(drill: Drill) -> list[Row]:
    """Long training, stopped by SIGTERM and resumed: memory, open files and processes, read each second, must not
    grow."""
    row, seconds = Row("soak"), 60 * drill.settings.soak_minutes
    if not seconds:
        return []
    sizes: dict[str, Any] = {"max_steps": 1_000_000, "eval_steps": 50, "save_steps": 25, "log_completions": "true"}
    folder, child = drill.run("soak", **sizes)
    slopes: list[float] = []
    files: list[tuple[int, int]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = progress(folder) if row.tried else 0
        child = drill.resume(folder, **sizes) if row.tried else child
        if not wait_for(lambda: (folder / "metrics.jsonl").exists(), child):
            row.add(f"it ended: {child.said()}")
            break
        samples = _watch(child, min(STRETCH, seconds / 2, max(5.0, until - time.monotonic())))
        wrong = "" if _send(child, signal.SIGTERM) == 128 + signal.SIGTERM else child.said()[-500:]
        steps = [line["step"] for line in Run(folder).read_metrics()]
        if steps != list(range(len(steps))) or steps[-1] <= before:
            wrong = wrong or f"metrics.jsonl has gaps or did not grow: {len(steps)} lines up to {steps[-1]}"
        left = _of_session(child.process.pid)
        row.add(wrong or (f"{len(left)} processes left" if left else ""))
        kept = samples[int(SETTLED * len(samples)) :]
        if len(kept) > 4:
            files.append((kept[0][2], kept[-1][2]))
            if kept[-1][0] * 60 >= SHORTEST:
                minutes, held, _ = zip(*kept, strict=True)
                slopes.append(statistics.linear_regression(minutes, held).slope)
    memory = "too short to judge memory"
    if slopes:
        steep = statistics.median(slopes)
        memory = f"memory {steep:+.2f} MB a minute (median of the stretches)"
        row.failures += [f"memory grows by {steep:.1f} MB a minute"] if steep > SLOPE else []
    row.failures += [f"open files grow: {files}"] if any(last > first + 2 for first, last in files) else []
    row.note = (
        f"{seconds / 60:g} min, {progress(folder)} iterations, {row.tried} stretches; {memory}, "
        f"{max((last for _, last in files), default=0)} open files, no process left"
    )
    return [row]


def _watch(child: Child, seconds: float) -> list[tuple[float, float, int]]:
    """(minutes, resident MB, open files) of a process, once a second."""
    begun, samples, process = time.monotonic(), [], psutil.Process(child.process.pid)
    while (now := time.monotonic() - begun) < seconds and child.process.exitcode is None:
        samples.append((now / 60, process.memory_info().rss / 2**20, process.num_fds()))
        time.sleep(min(1.0, seconds / 20))
    return samples


def _of_session(session: int) -> list[int]:
    """Ids of the processes of a session (each run leads its own session)."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):  # the process has just ended
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
