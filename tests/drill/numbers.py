"""Numbers that are not finite, and a gradient far too large."""

from __future__ import annotations

import math

from drill.harness import EVERY, ITERATIONS, Drill, Outcome, Tally, difference, same_weights, start, train_arguments
from drill.inside import Fault
from lfpo.runs.directory import Run
from lfpo.train.rl import MAX_SKIPPED

STEPS = 2  # optimiser steps an iteration, as in train_arguments


def nonfinite(drill: Drill) -> list[Outcome]:
    """A NaN or infinite gradient, once and in every step; a spike."""
    first = EVERY * STEPS + 1  # the first step after the first checkpoint
    return [
        _skipped(drill, "a NaN gradient", Fault("nan_gradient", "gradient", first, 1), 1),
        _skipped(drill, "an infinite gradient, three times", Fault("inf_gradient", "gradient", first, 3), 3),
        nan_in_every_step(drill, Fault("nan_gradient", "gradient", first, 10_000)),
        _spike(drill, Fault("spike", "gradient", first, 1)),
    ]


def _skipped(drill: Drill, name: str, fault: Fault, times: int) -> Outcome:
    tally = Tally(name, f"{times} skipped and counted, training went on")
    folder = drill.folder("nonfinite")
    child = start(train_arguments(folder), fault)
    code, rows = child.wait(), Run(folder).read_metrics()
    if code != 0 or len(rows) != ITERATIONS + 1:
        tally.add(f"exit code {code}: {child.said()}")
    else:
        tally.add("" if rows[-1]["skipped_updates"] == times else f"{rows[-1]['skipped_updates']} counted")
    return tally.outcome()


def nan_in_every_step(drill: Drill, fault: Fault) -> Outcome:
    """All updates after the first checkpoint fail: the second holds the same weights, then training stops."""
    tally = Tally("a NaN gradient in every step", f"stopped after {MAX_SKIPPED}; weights unchanged")
    folder = drill.folder("nonfinite")
    child = start(train_arguments(folder), fault)
    code, said = child.wait(), child.said()
    checkpoints = folder / "checkpoints"
    if code != 2 or f"not finite {MAX_SKIPPED} times in a row" not in said or "Traceback" in said:
        tally.add(f"exit code {code}: {said}")
    elif not same_weights(checkpoints / f"step-{EVERY}" / "model", checkpoints / f"step-{2 * EVERY}" / "model"):
        tally.add("a NaN update reached the weights")
    else:
        resumed = start([*train_arguments(folder), "--resume"])
        tally.add("" if resumed.wait() == 0 else f"could not resume: {resumed.said()}")
    return tally.outcome()


def _spike(drill: Drill, fault: Fault) -> Outcome:
    tally = Tally("a gradient a million times too large", "clipped, logged, training went on")
    folder = drill.folder("spike")
    child = start(train_arguments(folder), fault)
    code, rows = child.wait(), Run(folder).read_metrics()
    logged = [row.get("grad_norm", 0.0) for row in rows]
    if code != 0 or not all(math.isfinite(row.get("loss", 0.0)) for row in rows):
        tally.add(f"exit code {code}: {child.said()}")
    elif max(logged) < 1e3 or not difference(drill.unbroken, folder):
        tally.add(f"the spike did not show: gradient norms {logged}")
    else:
        tally.add("")
    return tally.outcome()
