"""`lfpo compare`: runs the grid, then writes the table (Markdown, JSON), the figure and a page."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from lfpo.base.config import to_dict, yaml_text
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError
from lfpo.base.files import replace_file
from lfpo.compare.grid import read_result, run_cells
from lfpo.compare.settings import BASE, Cell, CompareConfig, cell_config, cells
from lfpo.compare.summary import curves, table
from lfpo.models.loading import trained_block_length
from lfpo.objectives import make_objective
from lfpo.objectives.objective import check_rollouts
from lfpo.prompts.tasks import get_task
from lfpo.report import write_report
from lfpo.report.figures import write_figures
from lfpo.runs.directory import Run
from lfpo.runs.stopping import StopRequests


def run_compare(config: CompareConfig, report: Callable[[str], None] = print) -> Path | None:
    """Run the missing cells; write table, figure and report. Returns the path of the Markdown page, or None after a
    dry run.

    Raises UserError at the end where cells failed; the table says how many runs it has. SIGTERM or SIGINT stops the
    running cells, which keep a checkpoint, and raises Stopped, a KeyboardInterrupt.
    """
    check(config)
    if config.dry_run:
        dry_run(config, report)
        return None
    with StopRequests() as stop, stop.at_once():
        failed = run_cells(config, report)
    page = write_results(config, failed)
    report(f"wrote {page}\nwrote {write_report(Run(page.parent))}")
    if failed:
        label, why = next(iter(failed.items()))
        raise UserError(
            f"{len(failed)} cells failed and are missing from the table, the first {label}: {why}; the same command "
            "runs them again"
        )
    return page


def check(config: CompareConfig) -> None:
    """Check the settings of every cell before any of them runs. Raises UserError."""
    for label in config.objectives:
        settings = cell_config(config, Cell(label, config.seeds[0]))
        objective, blocks = make_objective(settings.objective), trained_block_length(settings.model)
        try:
            sampler = settings.sampler.for_length(get_task(settings.task or "").gen_length, blocks)
        except ValueError as error:
            raise UserError(f"lfpo compare: {label}: sampler: {error}") from error
        check_rollouts(objective, sampler, trained_block=blocks)


def dry_run(config: CompareConfig, report: Callable[[str], None]) -> None:
    """Print every cell, and the time that is left as the finished ones tell."""
    found = {cell: read_result(config, cell) for cell in cells(config)}
    for cell, result in found.items():
        report(f"{cell.label}: {'to run' if result is None else 'finished'}")
    took = [result["seconds"] for cell, result in found.items() if result is not None and cell.objective != BASE]
    left = sum(result is None for result in found.values())
    cost = f"about {left * fmean(took) / 3600:.1f} core-hours" if took else "their cost is known once one has finished"
    report(f"{left} of {len(found)} cells to run; {cost}")


def write_results(config: CompareConfig, failed: dict[str, str]) -> Path:
    """Write results.json, the figure and README.md; returns the path of README.md."""
    root, base = Path(config.output_dir), read_result(config, Cell(BASE))
    found = {label: [read_result(config, Cell(label, seed)) for seed in config.seeds] for label in config.objectives}
    results = {label: [r for r in group if r is not None] for label, group in found.items()}
    made = table(config, base, results)
    every = [cell for group in results.values() for cell in group]
    data = {
        "title": f"Objectives on {cell_config(config, Cell(BASE)).task}",
        "summary": f"{len(results)} objectives, {len(config.seeds)} seeds, {config.problems} held-out problems",
        "table": made,
        "curves": curves(base, results),
        "cells": [*([] if base is None else [base]), *every],
        "environment": f"{describe_environment()}; {', '.join(f'{k} {v}' for k, v in versions().items())}",
        "config": yaml_text(to_dict(config)),
    }
    root.mkdir(parents=True, exist_ok=True)
    replace_file(root / "results.json", json.dumps(data) + "\n")
    figures = [path for path in write_figures(Run(root)) if path.suffix == ".svg"]
    lines = [f"# {data['title']}", "", f"{data['summary']}. {data['environment']}.", ""]
    lines += [f"Missing: {label}: {why}\n" for label, why in failed.items()]
    lines += [_row(made["columns"]), "| --- |" + " ---: |" * (len(made["columns"]) - 1), *map(_row, made["rows"])]
    lines += ["", made["caption"], "", *(f"![{p.stem}](figures/{p.name})" for p in figures)]
    lines += ["", "Run by `lfpo compare` with these settings:", "", "```yaml", str(data["config"]).rstrip(), "```", ""]
    if len(made_by := {cell["version"] for cell in every}) > 1:
        lines.insert(4, f"The runs are of several versions of lfpo: {', '.join(sorted(made_by))}.\n")
    replace_file(root / "README.md", "\n".join(lines))
    return root / "README.md"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
