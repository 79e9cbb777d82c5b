"""A folder of runs: what each is and how it stands, with the course of one metric for a chart of all."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from lfpo.base.progress import duration
from lfpo.base.terminal import Terminal, fitted
from lfpo.config.build import load_yaml
from lfpo.config.errors import UserError
from lfpo.config.files import read_json
from lfpo.config.json import Json
from lfpo.report.data import columns, evaluation_pairs, time_left
from lfpo.runs.directory import Run, data_of
from lfpo.runs.results import measure_of, score_text

QUIET = 1800.0  # seconds without a line of metrics after which an unfinished run counts as stopped
SHOWN = ("name", "objective", "on", "learning rate", "state", "reward", "held out", "before", "after")


def runs_in(folder: Path) -> list[Run]:
    """The runs of `lfpo train` directly inside a folder, oldest first."""
    files = [file for file in folder.glob("*/run.json") if (file.parent / "metrics.jsonl").exists()]
    return [Run(file.parent) for file in sorted(files, key=os.path.getmtime) if read_json(file)["kind"] == "train"]


def overview_data(folder: Path) -> Json:
    """The data of the page of a folder of runs. Raises UserError where it holds none."""
    runs = [found for run in runs_in(folder) if (found := summary(run)) is not None]
    if not runs:
        raise UserError(
            f"{folder}: no metrics.jsonl with at least one line; give a folder of lfpo train, or of such runs"
        )
    return {"kind": "overview", "name": folder.resolve().name, "columns": list(SHOWN), "runs": runs}


def summary(run: Run) -> Json | None:
    """One run: the cells of its row, its metrics for the chart, and what its chart shows. None without metrics."""
    metrics = run.read_metrics()
    if not metrics:
        return None
    config, info = load_yaml(run.dir / "config.yaml"), read_json(run.dir / "run.json")
    pairs = evaluation_pairs(metrics)
    rewards = [m["reward"] for m in metrics if m.get("reward") is not None]
    kept = ["step", "reward", *(f"eval/{pair['name']}/{measure_of(pair['last'])}" for pair in pairs)]
    series = columns([{key: m[key] for key in kept if key in m} for m in metrics])
    cells = {
        "name": run.dir.name,
        "objective": config["objective"]["name"],
        "on": data_of(config) or "rows given in Python",
        "learning rate": f"{rate:g}" if (rate := config.get("learning_rate") or info.get("learning_rate")) else "",
        "state": _state(run, metrics, config, info["iterations"]),
        "reward": f"{rewards[-1]:.3f}" if rewards else "",
        "held out": ", ".join(pair["name"] for pair in pairs),
        "before": ", ".join(score_text(pair["first"]) for pair in pairs),
        "after": ", ".join(score_text(pair["last"]) for pair in pairs),
    }
    return {"cells": [cells[name] for name in SHOWN], "name": run.dir.name, "metrics": series, "held_out": kept[2:]}


def _state(run: Run, metrics: Sequence[Json], config: Json, total: int) -> str:
    """Finished, how far a running one is, or where one stopped."""
    last = metrics[-1]["step"]
    if last >= total:
        return f"finished, {total} iterations"
    if time.time() - run.metrics_file.stat().st_mtime > QUIET:
        return f"stopped at {last} of {total}"
    left = time_left(list(metrics), config, total)
    return f"{last} of {total}" + ("" if left is None else f", {duration(left)} left")


def print_overview(data: Json, console: Console | None = None) -> None:
    """Print a row for each run of a folder. data: of its page."""
    console = console or Terminal()
    table = Table(*(Column(name, overflow="fold") for name in SHOWN), title=data["name"], title_justify="left")
    for run in data["runs"]:
        table.add_row(*run["cells"])
    console.print(fitted(table, console))
