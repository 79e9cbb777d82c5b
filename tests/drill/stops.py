"""Runs that are killed or stopped, then resumed: the end must equal that of an uninterrupted run."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from drill.harness import (
    EVERY,
    ITERATIONS,
    Child,
    Drill,
    Outcome,
    Tally,
    difference,
    progress,
    recover,
    start,
    train_arguments,
    wait_for,
)
from drill.inside import Fault
from lfpo.base.errors import UserError
from lfpo.rewards.sandbox import Job, Limits, Sandbox, available_rungs
from lfpo.train.checkpoint import latest_checkpoint

GRACE = 10.0  # seconds that a scheduler waits between SIGTERM and SIGKILL
TRIES = 20  # runs that may end before their fault happens


def killed(drill: Drill) -> list[Outcome]:
    """SIGKILL while writing a checkpoint, evaluating or scoring rewards, and at any moment, in turn."""
    places = {
        "checkpoint": "writing a checkpoint",
        "evaluation": "an evaluation",
        "reward": "reward scoring",
        "": "any moment",
    }
    tallies = {place: Tally(f"SIGKILL, {name}", "bit-identical end") for place, name in places.items()}
    for number in range(drill.settings.kills):
        place = list(places)[number % len(places)]
        if place:
            folder = drill.folder(f"killed-{place}")
            fault = Fault("kill", place, drill.rng.randint(1, drill.visits[place]))
            code = start(train_arguments(folder), fault).wait()
        else:
            child, folder = _at_random_moment(drill, "killed-any", -1)
            code = _send(child, signal.SIGKILL)
        if code != -signal.SIGKILL:
            tallies[place].add(f"{folder.name}: ended with {code} before the kill")
            continue
        found = recover(drill, folder)
        tallies[place].add(found.wrong, found.lost, found.seconds)
    return [tally.outcome() for tally in tallies.values() if tally.tried]


def _at_random_moment(drill: Drill, name: str, first: int) -> tuple[Child, Path]:
    """A run at a random iteration from `first` on (-1: as it starts), a random part of a second into it."""
    for _ in range(TRIES):
        folder = drill.folder(name)
        child = start(train_arguments(folder))
        wanted = drill.rng.randrange(first, ITERATIONS - 1)
        wait_for(lambda folder=folder, wanted=wanted: progress(folder) >= wanted, child)  # type: ignore[misc]
        time.sleep(drill.rng.random() * 0.3)
        if progress(folder) < ITERATIONS and child.process.exitcode is None:
            return child, folder
        child.wait()
    raise UserError(f"{TRIES} runs ended before they could be stopped: {child.said()}")


def _send(child: Child, number: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.process.pid, number)
    return child.wait()


def stopped(drill: Drill) -> list[Outcome]:
    """SIGTERM and SIGINT at random moments: a checkpoint of all finished iterations within GRACE, exit code 128 + N."""
    tally = Tally("SIGTERM or SIGINT", "")
    waits = []
    for number in range(drill.settings.stops):
        which = (signal.SIGTERM, signal.SIGINT)[number % 2]
        child, folder = _at_random_moment(drill, "stopped", 0)
        before, sent = progress(folder), time.monotonic()
        code = _send(child, which)
        waits.append(time.monotonic() - sent)
        checkpoint = latest_checkpoint(folder)
        saved = int(checkpoint.name.removeprefix("step-")) if checkpoint else 0
        # After a signal in the last moments, when everything is saved, the run may end with code 0.
        if code != 128 + which and not (code == 0 and progress(folder) == ITERATIONS):
            tally.add(f"{folder.name}: exit code {code}: {child.said()}")
        elif waits[-1] > GRACE or saved < before:
            tally.add(f"{folder.name}: {waits[-1]:.1f} s, {saved} of {before} iterations saved")
        else:
            found = recover(drill, folder)
            tally.add(found.wrong, found.lost, found.seconds)
    tally.note = f"saved and ended within {max(waits):.1f} s; exit code 128 + N; bit-identical end" if waits else ""
    return [tally.outcome(), _twice(drill)]


def _twice(drill: Drill) -> Outcome:
    """A second signal ends the process at once; the last checkpoint stays."""
    tally = Tally("a second signal")
    for _ in range(1 if drill.settings.stops else 0):
        folder = drill.folder("twice")
        child = start(train_arguments(folder))
        wait_for(lambda folder=folder: progress(folder) >= EVERY, child)  # type: ignore[misc]
        sent = time.monotonic()
        os.kill(child.process.pid, signal.SIGTERM)
        code = _send(child, signal.SIGTERM)
        took = time.monotonic() - sent
        tally.note = f"ended within {took:.1f} s; bit-identical end"
        # Two signals sent at once may arrive as one, which is an ordinary stop.
        if code not in (-signal.SIGTERM, 128 + signal.SIGTERM) or took > GRACE:
            tally.add(f"exit code {code} after {took:.1f} s")
        else:
            found = recover(drill, folder)
            tally.add(found.wrong, found.lost, found.seconds)
    return tally.outcome()


def repeated(drill: Drill) -> list[Outcome]:
    """The same seed twice, the second time with a wall clock that jumps by a day at each call."""
    same, clock = Tally("the same seed again", "the same bits"), Tally("the clock jumps by a day", "the same bits")
    for tally, fault in ((same, None), (clock, Fault("clock"))):
        folder = drill.folder("repeated")
        child = start(train_arguments(folder), fault)
        code = child.wait()
        tally.add(difference(drill.unbroken, folder) if code == 0 else f"exit code {code}: {child.said()}")
    return [same.outcome(), clock.outcome(), _workers()]


def _workers() -> Outcome:
    """Programs that pass, fail, crash and take too long, judged by one sandbox worker and by two."""
    tally = Tally("1 and 2 sandbox workers", "the same verdicts")
    if not any(rung.available for rung in available_rungs() if rung.name != "limits"):
        return Outcome(tally.fault, 0, 0, note="not tried: no sandbox here (lfpo doctor says why)")
    bodies = ["return 3", "return 4", "raise KeyError('k')", "while True: pass", "import os; os._exit(0)", "return 3"]
    jobs = [Job(f"def f():\n    {body}", tests=["assert f() == 3"]) for body in bodies]
    found = [
        [(verdict.passed, verdict.reason) for verdict in Sandbox(limits=Limits(seconds=2.0), workers=n).run(jobs)]
        for n in (1, 2)
    ]
    right = [True, False, False, False, False, True]
    tally.add("" if found[0] == found[1] and [passed for passed, _ in found[0]] == right else f"{found}")
    return tally.outcome()
