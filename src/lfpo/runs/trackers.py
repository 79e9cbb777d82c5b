"""Metrics to TensorBoard, Weights & Biases or trackio beside metrics.jsonl, by accelerate's trackers (`report_to`)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.files import read_json
from lfpo.runs.directory import Run

TRACKERS = {"tensorboard": ["tensorboard", "tensorboardX"], "wandb": ["wandb"], "trackio": ["trackio"]}  # packages


def check(names: list[str]) -> None:
    """Raise ValueError for trackers that do not exist."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"'report_to' {name!r} is not one of {', '.join(TRACKERS)}")


@contextmanager
def reporting(names: list[str], run: Run, config: Mapping[str, Any], *, done: int) -> Iterator[None]:
    """Send every number that `run` logs meanwhile to the trackers called `names`, under its step.

    The project is WANDB_PROJECT or TRACKIO_PROJECT, "lfpo" where that is not set; the run is called after its folder.
    TensorBoard writes to `tensorboard/` in it. What else a tracker takes from the environment holds (WANDB_MODE, ...).
    config: shown beside the curves. done: steps behind the run; TensorBoard and W&B continue a resumed run's curves
        without what a crash had logged after them.
    Raises UserError where a tracker is not installed.
    """
    trackers = [] if run.silent else [_start(name, run, config, done) for name in names]

    def log(values: Mapping[str, Any]) -> None:
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float) and k != "step"}
        for tracker in trackers:
            tracker.log(numbers, step=values["step"])

    run.listeners.append(log)
    try:
        yield
    finally:
        run.listeners.remove(log)
        for tracker in trackers:
            tracker.finish()


def _start(name: str, run: Run, config: Mapping[str, Any], done: int) -> Any:
    if not any(importlib.util.find_spec(package) for package in TRACKERS[name]):
        raise UserError(f"report_to: {name} is not installed; pip install {TRACKERS[name][0]}, or leave it out")
    from accelerate import tracking

    number, title = read_json(run.dir / "run.json")["id"], run.dir.resolve().name
    tracker: Any
    if name == "tensorboard":
        tracker = tracking.TensorBoardTracker("tensorboard", run.dir, purge_step=done + 1)
        tracker.start()
        tracker.writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in config.items()))
        return tracker
    if name == "wandb":
        project = os.environ.get("WANDB_PROJECT", "lfpo")
        tracker = tracking.WandBTracker(project, name=title, id=number, resume="allow", dir=run.dir)
    else:
        project = os.environ.get("TRACKIO_PROJECT", "lfpo")
        tracker = tracking.TrackioTracker(project, name=f"{title}-{number}", resume="allow", embed=False)
    tracker.start()
    tracker.store_init_configuration(dict(config))
    return tracker
