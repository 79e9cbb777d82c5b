"""Runs the grid of a comparison, each cell in a process of its own: tuning, then evaluation. No cell runs twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lfpo.base.config import to_dict, yaml_text
from lfpo.base.files import read_json, replace_file
from lfpo.compare.endpoints import frontier_area
from lfpo.compare.probe import Probes
from lfpo.compare.settings import BASE, Cell, CompareConfig, cell_config, recipe_name
from lfpo.compare.store import Store, cell_key

Report = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """One trial of tuning. scores: area under the frontier on validation problems, one a tuning seed that finished."""

    setting: str
    objective: str
    learning_rate: float
    knobs: str
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)


@dataclass
class Grid:
    """A comparison's cells, finished ones in `store`. failed: label of a cell -> the last line of its log."""

    config: CompareConfig
    store: Store
    report: Report
    probes: Probes = field(init=False)
    failed: dict[str, str] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.probes = Probes(self.config)

    def key(self, cell: Cell) -> str:
        settings = cell_config(self.config, cell)
        return cell_key(self.config, settings, cell, self.probes.of(settings, cell).fingerprint)

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """A finished cell's result with what the cell is; None if it is missing."""
        found = self.store.results.get(self.key(cell))
        if found is None:
            return None
        what = {"arm": cell.arm, "setting": cell.setting, "objective": cell.objective, "seed": cell.seed}
        return {**found, **what, "learning_rate": cell.learning_rate, "knobs": json.loads(cell.knobs)}

    def run(self) -> None:
        """Run every missing cell: bases, all rates on the tuning seeds, all knobs at the best rates, then the
        evaluation seeds with what was chosen. A cell that fails does not stop the others."""
        self.run_cells([*bases(self.config), *first_trials(self.config)], "bases and learning rates")
        self.run_cells(self.second_trials(), "knobs")
        self.trials = self.read_trials()
        self.run_cells(self.evaluations(), "evaluation")

    def second_trials(self, otherwise: float | None = None) -> list[Cell]:
        """The knobs of each tuned objective, at its best rate, or at another where no trial of a rate finished."""
        cells = []
        for arm, recipe, label in tuned(self.config):
            if (rate := self.best_rate(arm, recipe, label) or otherwise) is not None:
                for knobs in self.config.trials.get(label, []):
                    cells += tuning_cells(self.config, arm, recipe, label, rate, json.dumps(knobs))
        return cells

    def best_rate(self, arm: str, recipe: str, label: str) -> float | None:
        """The best learning rate of a tuned objective with its own settings; None if no trial finished."""
        rates = [self.trial(arm, recipe, label, rate, "{}") for rate in self.config.learning_rates]
        best = best_trial([t for t in rates if t is not None])
        return None if best is None else best.learning_rate

    def trial(self, arm: str, recipe: str, label: str, rate: float, knobs: str) -> Trial | None:
        """A trial from its finished cells; None if none finished."""
        cells = tuning_cells(self.config, arm, recipe, label, rate, knobs)
        found = [r for cell in cells if (r := self.result(cell)) is not None]
        scores = tuple(frontier_area(r["frontier"], r["forwards"]) for r in found)
        return Trial(cells[0].setting, label, rate, knobs, scores) if scores else None

    def read_trials(self) -> list[Trial]:
        """All trials of which a cell is finished."""
        cells = [*first_trials(self.config), *self.second_trials()]
        asked = dict.fromkeys((c.arm, c.recipe, c.objective, c.learning_rate, c.knobs) for c in cells)
        return [t for of in asked if (t := self.trial(*of)) is not None]

    def choice(self, arm: str, recipe: str, label: str) -> tuple[float, str] | None:
        """The learning rate and knobs of an objective in an arm; None if no trial of its tuning finished."""
        like = self.config.rate_of.get(label, label)
        where = self.config.arms[arm].choice or f"{arm}/{recipe_name(recipe)}"
        if not tunes(self.config):
            return self.config.learning_rates[0], "{}"
        best = best_trial([t for t in self.trials if t.setting == where and t.objective == like])
        if best is None:
            return None
        return best.learning_rate, best.knobs if like == label else "{}"

    def evaluations(self) -> list[Cell]:
        """The evaluation cells of every arm, with the chosen rates and knobs; seed by seed, so that a grid that is
        stopped early has all objectives."""
        cells = []
        for name, arm in self.config.arms.items():
            for number in range(arm.seeds):
                for recipe in arm.recipes:
                    for label in arm.objectives:
                        if (chosen := self.choice(name, recipe, label)) is not None:
                            seed = self.config.evaluation_seeds[number]
                            cells.append(Cell(name, recipe, label, chosen[0], seed, chosen[1]))
        return cells

    def run_cells(self, cells: Sequence[Cell], what: str) -> None:
        """Run the cells that have no result yet, `workers` at a time."""
        waiting = {key: cell for cell in cells if (key := self.key(cell)) not in self.store.results}
        self.report(f"{what}: {len(cells)} cells, {len(waiting)} to run")
        running: dict[str, tuple[Cell, subprocess.Popen[bytes], float]] = {}
        done, total = 0, len(waiting)
        queue = list(waiting.items())
        try:
            while queue or running:
                while queue and len(running) < self.config.workers:
                    key, cell = queue.pop(0)
                    running[key] = (cell, start(self.config, self.folder(key, cell)), time.monotonic())
                time.sleep(0.2)
                for key in [key for key, (_, process, _) in running.items() if process.poll() is not None]:
                    cell, process, since = running.pop(key)
                    done += 1
                    outcome = self.finish(key, cell, process.returncode)
                    self.report(f"[{done}/{total}] {cell.label}: {outcome} ({time.monotonic() - since:.0f} s)")
        finally:
            for _, process, _ in running.values():
                process.terminate()
                process.wait()

    def folder(self, key: str, cell: Cell) -> Path:
        """A cell's folder, with cell.json and config.yaml."""
        folder = Path(self.config.output_dir) / "cells" / key
        settings = cell_config(self.config, cell)
        settings.output_dir = str(folder / "run")
        description = {
            "label": cell.label,
            "train": cell.objective != BASE,
            "tuning": cell.tuning,
            "problems": self.config.validation if cell.tuning else self.config.problems,
            "curve_sampler": self.config.curve_sampler,
            "thresholds": self.config.thresholds,
        }
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "config.yaml", yaml_text(to_dict(settings)))
        replace_file(folder / "cell.json", json.dumps(description, indent=1) + "\n")
        return folder

    def finish(self, key: str, cell: Cell, code: int) -> str:
        """Keep the result of a cell that ended, and drop its weights; or note why it failed. Returns a phrase."""
        folder = Path(self.config.output_dir) / "cells" / key
        if code:
            self.failed[cell.label] = f"{last_line(folder / 'log.txt')} (see {folder / 'log.txt'})"
            return f"failed: {self.failed[cell.label]}"
        result = read_json(folder / "result.json")
        self.store.add(key, result)
        for name in ("checkpoints", "model"):
            shutil.rmtree(folder / "run" / name, ignore_errors=True)
        area = frontier_area(result["frontier"], result["forwards"])
        return f"frontier area {100 * area:.1f} %, {result['flops'] / 1e12:.1f} TFLOPs"


def tunes(config: CompareConfig) -> bool:
    """Whether there is anything to tune: more than one rate, or knobs to try."""
    return len(config.learning_rates) > 1 or any(config.trials.values())


def tuned(config: CompareConfig) -> list[tuple[str, str, str]]:
    """(arm, recipe, label) of everything that is tuned."""
    return [
        (name, recipe, label)
        for name, arm in config.arms.items()
        if not arm.choice and tunes(config)
        for recipe in arm.recipes
        for label in arm.objectives
        if label not in config.rate_of
    ]


def bases(config: CompareConfig) -> list[Cell]:
    """The untrained model of each arm and recipe."""
    return [Cell(name, recipe, BASE, 0.0, 0) for name, arm in config.arms.items() for recipe in arm.recipes]


def tuning_cells(config: CompareConfig, arm: str, recipe: str, label: str, rate: float, knobs: str) -> list[Cell]:
    return [Cell(arm, recipe, label, rate, seed, knobs, tuning=True) for seed in config.tuning_seeds]


def first_trials(config: CompareConfig) -> list[Cell]:
    """Every rate with the objective's own settings."""
    return [
        cell
        for arm, recipe, label in tuned(config)
        for rate in config.learning_rates
        for cell in tuning_cells(config, arm, recipe, label, rate, "{}")
    ]


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the best mean over the seeds that finished; of equal ones the first."""
    return max(trials, key=lambda t: t.mean) if trials else None


def start(config: CompareConfig, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of a cell; it appends its output to the cell's log.txt.

    It has a process group of its own, so that Ctrl-C in a terminal reaches the grid only, which then stops its cells.
    A cell that got both signals would end before its checkpoint is written.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.threads)}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "lfpo.compare.cell", str(folder)],
            stdout=log,
            stderr=log,
            env=environment,
            process_group=0,
        )


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
