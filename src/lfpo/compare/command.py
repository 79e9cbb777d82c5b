"""`lfpo compare`: runs the grid, then writes tables (Markdown, LaTeX, JSON), figures and a page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lfpo.base.config import to_dict, yaml_text
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError
from lfpo.base.files import replace_file
from lfpo.compare import tables
from lfpo.compare.dry_run import dry_run
from lfpo.compare.gradients import gradient_quality
from lfpo.compare.grid import Grid
from lfpo.compare.results import Results, arm_results, load_results, profiles
from lfpo.compare.settings import Cell, CompareConfig, cell_config, recipe_name
from lfpo.compare.store import Store, unpack
from lfpo.models.loading import trained_block_length
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.prompts.tasks import get_task
from lfpo.report import write_report
from lfpo.report.figures import write_figures
from lfpo.runs.directory import Run
from lfpo.runs.stopping import StopRequests


def run_compare(config: CompareConfig, report: Callable[[str], None] = print) -> Path | None:
    """Run the missing cells of the grid; write tables, figures and report. Returns the path of the Markdown page, or
    None after a dry run.

    Raises UserError at the end where cells failed; tables and figures say what is missing. SIGTERM or SIGINT stops the
    running cells, which keep a checkpoint, and raises Stopped, a KeyboardInterrupt.
    """
    check(config)
    root = Path(config.output_dir)
    grid = Grid(config, Store(Path(config.store).expanduser() if config.store else root / "cells.json.gz"), report)
    if config.dry_run:
        grid.trials = grid.read_trials()
        dry_run(grid, report)
        return None
    with StopRequests() as stop, stop.at_once():
        grid.run()
    results = load_results(grid)
    for setting in [s for s in results.cells if s.partition("/")[0] in config.gradients]:
        results.gradients[setting] = stored_gradients(grid, *setting.split("/", 1))
    page = write_results(results, root)
    report(f"wrote {page}\nwrote {write_report(Run(root))}")
    if grid.failed:
        label, why = next(iter(grid.failed.items()))
        raise UserError(
            f"{len(grid.failed)} cells failed and are missing from the tables, the first {label}: {why}; the same "
            "command runs them again"
        )
    return page


def write_results(results: Results, root: Path) -> Path:
    """Write README.md, tables.tex, results.json and figures; returns the path of README.md."""
    made = all_tables(results)
    root.mkdir(parents=True, exist_ok=True)
    replace_file(root / "tables.tex", "\n".join(tables.latex(t) for t in made))
    replace_file(root / "results.json", json.dumps(as_json(results, made)) + "\n")
    figures = write_figures(Run(root))
    page = root / "README.md"
    replace_file(page, markdown_page(results, made, [p for p in figures if p.suffix == ".svg"]))
    return page


def check(config: CompareConfig) -> None:
    """Check the settings of every cell before any of them runs. Raises UserError."""
    for name, arm in config.arms.items():
        for recipe in arm.recipes:
            for label in arm.objectives:
                for knobs in [{}, *config.trials.get(label, [])]:
                    cell = Cell(name, recipe, label, config.learning_rates[0], 0, json.dumps(knobs))
                    settings = cell_config(config, cell)
                    objective = make_objective(settings.objective)
                    blocks = _block_length(settings.model, cell)
                    try:
                        sampler = settings.sampler.for_length(get_task(settings.task or "").gen_length, blocks)
                    except ValueError as error:
                        raise UserError(f"lfpo compare: {cell.label}: sampler: {error}") from error
                    check_rollouts(objective, sampler, trained_block=blocks)


def _block_length(model: str, cell: Cell) -> int | None:
    try:
        return trained_block_length(model)
    except UserError as error:
        raise UserError(
            f"lfpo compare: arm {cell.arm!r}: {error}; the comment in recipe {cell.recipe!r} says which model it "
            "needs, and --only ARM,ARM leaves this arm out"
        ) from error


def stored_gradients(grid: Grid, arm: str, recipe: str) -> list[dict[str, Any]]:
    """Gradient noise in one setting, from the store where settings, objectives and code are the same."""
    config = grid.config
    path = next(r for r in config.arms[arm].recipes if recipe_name(r) == recipe)
    labels = config.arms[arm].objectives
    cells = [Cell(arm, path, label, config.learning_rates[0], 0) for label in labels]
    key = "gradients-" + hashlib.sha256("".join(grid.key(cell) for cell in cells).encode()).hexdigest()[:16]
    if key not in grid.store.results:
        settings = cell_config(config, cells[0])
        rows = gradient_quality(settings, {label: config.objectives[label] for label in labels})
        grid.store.add(key, {"gradients": rows})
    return grid.store.results[key]["gradients"]


def all_tables(results: Results) -> list[tables.Table]:
    made: list[tables.Table | None] = [tables.arms_table(results, label) for label in results.config.objectives]
    made += [tables.against_table(results, arm) for arm in results.config.arms]
    for setting in results.cells:
        made += [tables.endpoints_table(results, setting), tables.forwards_table(results, setting)]
        made.append(tables.reach_table(results, setting))
    made += [tables.trials_table(results, setting) for setting in results.cells]
    made += [tables.knobs_table(results, label) for label in results.config.objectives]
    made += [tables.gradient_table(results, setting) for setting in results.gradients]
    return [table for table in made if table is not None]


def markdown_page(results: Results, made: list[tables.Table], figures: list[Path]) -> str:
    config = results.config
    lines = ["# Comparison of objectives", ""]
    lines += [f"{describe_environment()}; {', '.join(f'{k} {v}' for k, v in versions().items())}.", ""]
    if results.missing:
        lines += ["Missing, and in no number below:", ""]
        lines += [*(f"- {label}: {why}" for label, why in results.missing.items()), ""]
    lines += [tables.markdown(t) for t in made]
    lines += ["### Figures", "", *(f"![{p.stem}](figures/{p.name})" for p in figures)]
    lines += ["", "### Settings", "", "Run by `lfpo compare` with these:", "", "```yaml"]
    return "\n".join([*lines, yaml_text(to_dict(config)).rstrip(), "```", ""])


def as_json(results: Results, made: list[tables.Table]) -> dict[str, Any]:
    """The tables as data, and the cells that they are made from, as `lfpo report` reads them."""
    config = results.config
    of_arms = {label: arm_results(results, label) for label in config.objectives}
    return {
        "tables": [asdict(table) for table in made],
        "gradients": results.gradients,
        "trials": [{**asdict(t), "mean": t.mean} for t in results.trials],
        "profiles": {arm: found for arm in config.arms if (found := profiles(results, arm))},
        "arms": {label: [asdict(one) for one in arms] for label, arms in of_arms.items() if arms},
        "missing": results.missing,
        "bases": {setting: _plain(base, config.curve_sampler) for setting, base in results.bases.items()},
        "cells": [
            _plain(cell, config.curve_sampler)
            for labels in results.cells.values()
            for seeds in labels.values()
            for cell in seeds
        ],
        "environment": describe_environment(),
        "versions": versions(),
    }


def _plain(cell: dict[str, Any], sampler: str) -> dict[str, Any]:
    """A cell's result with verdicts problem by problem."""
    n = cell["problems"]
    found = {
        name: {**e, "correct": unpack(e["correct"], n), "nfe": [e["nfe"]], "steps": [e["steps"]]}
        for name, e in cell["eval"].items()
    }
    curve = [{**p, sampler: p["accuracy"]} for p in cell["curve"]]
    frontier = [{k: v for k, v in p.items() if k != "correct"} for p in cell["frontier"]]
    more = {"recipe": cell["setting"], "sampler": sampler, "curve_problems": n}
    return {**cell, **more, "eval": found, "curve": curve, "frontier": frontier}
