"""`lfpo compare`: runs the cells of the grid, each in a process of its own, then writes table, figure and page.

A cell with a result never runs again.
"""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from lfpo.base.environment import describe_environment, versions
from lfpo.compare.cell import completion_length, frontier_samplers, held_out
from lfpo.compare.processes import run_cells
from lfpo.compare.statistics import curves, frontier_area, measure_of, shown, table
from lfpo.config.build import to_dict, yaml_text
from lfpo.config.compare import BASE, Cell, CompareConfig, cell_config, cell_folder, cells
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, replace_file, write_json, writing
from lfpo.config.json import Json
from lfpo.core.observer import Observer
from lfpo.eval.store import content_sha256, data_sha256, file_sha256
from lfpo.models.loading import resolve, without_weights
from lfpo.models.mask_token import check_masks
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.report import write_report
from lfpo.report.figures import pyplot, write_figures
from lfpo.report.text import print_report
from lfpo.runs.card import table_cell
from lfpo.runs.context import StopRequests
from lfpo.runs.directory import Run, data_of
from lfpo.runs.display import Output


def run_compare(config: CompareConfig, report: Callable[[str], None] | None = None) -> Path | None:
    """Run the missing cells; write table, figure and report. Returns the path of the Markdown page, or None after a
    dry run, which prints every cell and the time that is left as the finished ones tell. report: takes each line
    (None: it is printed).

    Raises UserError at the end where cells failed; the table says how many runs it has. SIGTERM or SIGINT stops the
    running cells, which keep a checkpoint, and raises Stopped, a KeyboardInterrupt.
    """
    report = report or Output().say
    check(config)
    inputs = inputs_of(config)
    if config.dry_run:
        by_cell = {cell: read_result(config, cell) for cell in cells(config)}
        for cell, result in by_cell.items():
            report(f"{cell.label}: {'to run' if result is None else 'finished'}")
        took = [result["seconds"] for cell, result in by_cell.items() if result is not None and cell.objective != BASE]
        left = list(by_cell.values()).count(None)
        cost = (
            f"about {left * fmean(took) / 3600:.1f} core-hours" if took else "their cost is known once one has finished"
        )
        report(f"{left} of {len(by_cell)} cells to run; {cost}")
        return None
    observer = Observer()
    with StopRequests(observer), observer.interruptible_work():  # finished cells are kept
        missing = [cell for cell in cells(config) if read_result(config, cell) is None]
        report(f"{len(cells(config))} cells, {len(missing)} to run")
        folders = {cell.label: write_cell(config, cell, inputs[cell]) for cell in missing}
        failed = run_cells(folders, "lfpo.compare.cell", finish, config.workers, config.threads, report)
    page = write_results(config, failed)
    print_report(Run(page.parent))
    report(f"wrote {page}\nwrote {write_report(Run(page.parent))}")
    if failed:
        label, why = next(iter(failed.items()))
        raise UserError(
            f"{len(failed)} cells failed and are missing from the table, the first {label}: {why}; the same command "
            "runs them again"
        )
    return page


def check(config: CompareConfig) -> None:
    """Check the settings of every cell before any of them runs, and what draws them at the end. Raises UserError."""
    pyplot()
    models = functools.cache(without_weights)  # most cells have the same
    for label in config.objectives:
        settings = cell_config(config, Cell(label, config.seeds[0]))
        objective, model = make_objective(settings.objective), models(settings.model)
        length, blocks = completion_length(settings, config.curve_sampler), model.block_length
        sampler = settings.sampler.fitted(f"lfpo compare: {label}: sampler", length, blocks)
        check_rollouts(objective, sampler, trained_block=blocks)
        check_masks(model, "lfpo compare")
        frontier_samplers(settings, config.curve_sampler, config.thresholds, blocks)


def inputs_of(config: CompareConfig) -> dict[Cell, Json]:
    """SHA-256 of each cell's model, held-out problems and own verifier, which their names do not tell; in a dry run of
    those cells that were begun. Raises UserError for a cell that was begun with others: its result must not stand
    beside the new ones, nor its checkpoint go on."""
    found, of_model = {}, functools.cache(lambda model: file_sha256(resolve(model)))  # most cells have the same
    for cell in cells(config):
        settings, folder = cell_config(config, cell), cell_folder(config, cell)
        begun = read_json(folder / "cell.json").get("inputs", {}) if (folder / "cell.json").exists() else {}
        if config.dry_run and not begun:  # nothing to compare with, and large models take a while to read
            continue
        source = held_out(settings, range(config.problems))
        inputs = {f"model {settings.model}": of_model(settings.model)}
        inputs[f"data of task {settings.task or source.name}"] = data_sha256(source.eval_rows)
        inputs |= {f"file {file}": content_sha256(file) for file in source.files}
        if changed := [what for what, value in inputs.items() if begun.get(what, value) != value]:
            raise UserError(
                f"{folder}: this run was begun before {' and '.join(changed)} changed; give another output_dir, or "
                "delete this folder to run it again"
            )
        found[cell] = inputs
    return found


def read_result(config: CompareConfig, cell: Cell) -> Json | None:
    """A finished cell's result; None if it has none yet."""
    path = cell_folder(config, cell) / "result.json"
    return read_json(path) if path.exists() else None


def write_cell(config: CompareConfig, cell: Cell, inputs: Json) -> Path:
    """A cell's folder, with cell.json and config.yaml. inputs: the cell's of `inputs_of`."""
    folder, settings = cell_folder(config, cell), cell_config(config, cell)
    settings.output_dir = str(folder / "run")
    description = {
        "objective": cell.objective,
        "seed": cell.seed,
        "train": cell.objective != BASE,
        "sampler": config.curve_sampler,
        "thresholds": config.thresholds,
        "problems": list(range(config.problems)),
        "inputs": inputs,
    }
    with writing(folder, "; mend this, or give another output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "config.yaml", yaml_text(to_dict(settings)))
        write_json(folder / "cell.json", description)
    return folder


def finish(label: str, folder: Path) -> str:
    """Drop the weights of a cell that ended. Returns a phrase about its result."""
    for name in ("checkpoints", "model"):
        shutil.rmtree(folder / "run" / name, ignore_errors=True)
    result = read_json(folder / "result.json")
    area = shown(frontier_area(result["frontier"], result["forwards"]), measure_of(result))
    return f"area {area}, {result['flops'] / 1e12:.1f} TFLOPs"


def write_results(config: CompareConfig, failed: dict[str, str]) -> Path:
    """Write results.json, the figure and README.md; returns the path of README.md."""
    root, base = Path(config.output_dir), read_result(config, Cell(BASE))
    by_label = {label: [read_result(config, Cell(label, seed)) for seed in config.seeds] for label in config.objectives}
    results = {label: [r for r in group if r is not None] for label, group in by_label.items()}
    made = table(config, base, results)
    every = [cell for group in results.values() for cell in group]
    finished = [*([] if base is None else [base]), *every]
    problems = max((cell.get("problems", config.problems) for cell in finished), default=config.problems)
    data = {
        "title": f"Objectives on {data_of(to_dict(cell_config(config, Cell(BASE))))}",
        "summary": f"{len(results)} objectives, {len(config.seeds)} seeds, {problems} held-out problems",
        "measure": next((measure_of(cell) for cell in finished), "accuracy"),
        "table": made,
        "curves": curves(base, results),
        "cells": finished,
        "environment": f"{describe_environment()}; {', '.join(f'{k} {v}' for k, v in versions().items())}",
        "config": yaml_text(to_dict(config)),
    }
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        write_json(root / "results.json", data)
    rows = [made["columns"], ["---", *["---:"] * (len(made["columns"]) - 1)], *made["rows"]]
    lines = [f"# {data['title']}", "", f"{data['summary']}. {data['environment']}.", ""]
    if len(made_by := {cell["version"] for cell in every}) > 1:
        lines += [f"The runs are of several versions of lfpo: {', '.join(sorted(made_by))}.\n"]
    lines += [f"Missing: {label}: {why}\n" for label, why in failed.items()]
    lines += [f"| {' | '.join(map(table_cell, row))} |" for row in rows] + ["", made["caption"], ""]
    lines += [f"![{p.stem}](figures/{p.name})" for p in write_figures(Run(root)) if p.suffix == ".svg"]
    lines += ["", "Run by `lfpo compare` with these settings:", "", "```yaml", str(data["config"]).rstrip(), "```", ""]
    with writing(root):
        replace_file(root / "README.md", "\n".join(lines))
    return root / "README.md"
