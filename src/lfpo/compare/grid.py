"""Runs the grid of a comparison: each cell in a process of its own, finished cells never again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lfpo.base.config import build, load_yaml, to_dict, yaml_text
from lfpo.base.errors import UserError
from lfpo.base.files import read_json, replace_file
from lfpo.compare.settings import BASE, Cell, CompareConfig, cell_config
from lfpo.train.config import LFPOConfig

Report = Callable[[str], None]


def run_grid(config: CompareConfig, report: Report) -> dict[tuple[str, str], float]:
    """Run every missing cell: the bases, the learning rates on seed 0, then the other seeds at the best rate.

    Returns the learning rate chosen for each (recipe, objective). Raises UserError when cells failed.
    """
    first = [Cell(recipe, BASE, 0.0, 0) for recipe in config.recipes]
    first += [
        Cell(recipe, objective, rate, 0)
        for recipe in config.recipes
        for objective in config.objectives
        for rate in config.learning_rates
    ]
    run_cells(config, first, report)
    best = {(r, o): best_rate(config, r, o) for r in config.recipes for o in config.objectives}
    for (recipe, objective), rate in best.items():
        report(f"{recipe} / {objective}: learning rate {rate:g}")
    rest = [Cell(r, o, rate, seed) for (r, o), rate in best.items() for seed in range(1, config.seeds)]
    run_cells(config, rest, report)
    return best


def best_rate(config: CompareConfig, recipe: str, objective: str) -> float:
    """The learning rate with the best validation accuracy on seed 0; the smallest of several."""
    if len(config.learning_rates) == 1:
        return config.learning_rates[0]
    scores = {rate: read_result(config, Cell(recipe, objective, rate, 0)) for rate in config.learning_rates}
    return max(sorted(scores), key=lambda rate: scores[rate]["validation_accuracy"])


def read_result(config: CompareConfig, cell: Cell) -> dict[str, Any]:
    """The result of a finished cell, and its `folder`. Raises UserError when the file is missing or damaged."""
    folder = cell.folder(Path(config.output_dir))
    return {**read_json(folder / "result.json"), "folder": str(folder)}


def run_cells(config: CompareConfig, cells: Sequence[Cell], report: Report) -> None:
    """Run the cells that have no result yet, `workers` at a time."""
    waiting = [cell for cell in cells if prepare(config, cell)]
    if len(waiting) < len(cells):
        report(f"{len(cells) - len(waiting)} of {len(cells)} cells are finished already")
    running: dict[Cell, tuple[subprocess.Popen[bytes], float]] = {}
    failed: list[Cell] = []
    done, total = 0, len(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < config.workers:
                cell = waiting.pop(0)
                running[cell] = (start(config, cell), time.monotonic())
            time.sleep(0.2)
            for cell in [cell for cell, (process, _) in running.items() if process.poll() is not None]:
                process, since = running.pop(cell)
                done += 1
                if process.returncode:
                    failed.append(cell)
                outcome = "failed" if process.returncode else _accuracies(read_result(config, cell))
                report(f"[{done}/{total}] {cell.label}: {outcome} ({time.monotonic() - since:.0f} s)")
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait()
    if failed:
        log = failed[0].folder(Path(config.output_dir)) / "log.txt"
        raise UserError(
            f"{len(failed)} of {total} cells failed, the first with {last_line(log)!r}; see {log}, then run the same "
            "command again"
        )


def _accuracies(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {100 * found['accuracy']:.1f} %" for name, found in result["eval"].items())


def prepare(config: CompareConfig, cell: Cell) -> bool:
    """Write a cell's cell.json and config.yaml; return whether it still has to run.

    Raises UserError when the folder holds a cell with other settings.
    """
    folder = cell.folder(Path(config.output_dir))
    settings = cell_config(config, cell)
    description = {
        "recipe": cell.recipe,
        "objective": cell.objective,
        "learning_rate": cell.learning_rate,
        "seed": cell.seed,
        "train": cell.objective != BASE,
        "validation": config.validation,
        "sampler": config.sampler,
        "curve_problems": config.curve_problems,
    }
    stored = folder / "cell.json"
    if stored.exists() and (
        read_json(stored) != description
        or build(LFPOConfig, load_yaml(folder / "config.yaml"), str(folder)) != settings
    ):
        raise UserError(f"{folder}: holds a cell with other settings; give another output_dir, or delete the folder")
    if (folder / "result.json").exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    # cell.json comes last: where it exists, config.yaml is complete.
    replace_file(folder / "config.yaml", yaml_text(to_dict(settings)))
    replace_file(stored, json.dumps(description, indent=1) + "\n")
    return True


def start(config: CompareConfig, cell: Cell) -> subprocess.Popen[bytes]:
    """Start the process of a cell; it appends its output to the cell's log.txt."""
    folder = cell.folder(Path(config.output_dir))
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads)}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "lfpo.compare.cell", str(folder)], stdout=log, stderr=log, env=environment
        )


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
