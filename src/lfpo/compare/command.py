"""`lfpo compare`: runs the grid, then writes tables (Markdown, LaTeX, JSON) and figures (SVG, PNG)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lfpo.base.config import build, to_dict, yaml_text
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError
from lfpo.base.files import read_json, replace_file
from lfpo.compare import figures, tables
from lfpo.compare.gradients import gradient_quality
from lfpo.compare.grid import run_grid
from lfpo.compare.inference import add_inference, inference_samplers
from lfpo.compare.results import Results, load_results
from lfpo.compare.settings import BASE, Cell, CompareConfig, cell_config, recipe_name
from lfpo.models.loading import trained_block_length
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.prompts.tasks import get_task
from lfpo.report import write_report
from lfpo.runs.directory import Run
from lfpo.train.config import LFPOConfig


def run_compare(config: CompareConfig, report: Callable[[str], None] = print) -> Path:
    """Run the missing cells of the grid; write tables, figures and report. Returns the path of the Markdown page."""
    check(config)
    rates = run_grid(config, report)
    results = load_results(config, rates)
    add_inference(results, report)
    root = Path(config.output_dir)
    for recipe in config.recipes:
        results.gradients[recipe] = cached_gradients(config, recipe, root)
    for recipe in config.recipes:
        figures.convergence(results, recipe, config.sampler, root / f"convergence-{recipe_name(recipe)}")
        figures.straightness(results, recipe, root / f"straightness-{recipe_name(recipe)}")
    made = all_tables(results)
    page = root / "README.md"
    replace_file(page, markdown_page(results, made))
    replace_file(root / "tables.tex", "\n".join(tables.latex(t) for t in made))
    replace_file(root / "results.json", json.dumps(as_json(results, made)) + "\n")
    report(f"wrote {page}\nwrote {write_report(Run(root))}")
    return page


def check(config: CompareConfig) -> None:
    """Check the settings of every cell before any of them runs. Raises UserError."""
    samplers = {}
    for recipe in config.recipes:
        for label in config.objectives:
            cell = Cell(recipe, label, config.learning_rates[0], 0)
            settings = cell_config(config, cell)
            if settings.task is None:
                raise UserError(f"recipe {recipe}: has no 'task', whose verifier a comparison needs")
            samplers[recipe] = list(settings.eval_samplers)
            taken = set(settings.eval_samplers) & set(inference_samplers(config, recipe))
            if taken:
                raise UserError(
                    f"recipe {recipe}: {sorted(taken)[0]!r} is both an eval sampler and an inference sampler"
                )
            objective = make_objective(settings.objective)
            try:
                blocks = trained_block_length(settings.model)
                sampler = settings.sampler.for_length(get_task(settings.task).gen_length, blocks)
            except ValueError as error:
                raise UserError(f"lfpo compare: {cell.label}: sampler: {error}") from error
            check_rollouts(objective, sampler, settings.tree, trained_block=blocks)
    if len({tuple(sorted(names)) for names in samplers.values()}) > 1:
        raise UserError(f"lfpo compare: the recipes must have the same names of eval_samplers, found {samplers}")


def cached_gradients(config: CompareConfig, recipe: str, root: Path) -> list[dict[str, Any]]:
    """Gradient noise on one recipe, read from its file when settings and objectives are the same."""
    file = root / f"gradients-{recipe_name(recipe)}.json"
    settings = cell_config(config, Cell(recipe, next(iter(config.objectives)), config.learning_rates[0], 0))
    question = json.loads(json.dumps({"settings": to_dict(settings), "objectives": config.objectives}))
    if file.exists():
        stored = read_json(file)
        asked = stored["question"]
        # Built again, so that a key that is newer than the file counts as its default.
        same = settings == build(LFPOConfig, asked["settings"], str(file))
        if same and asked["objectives"] == question["objectives"]:
            return stored["rows"]
    rows = gradient_quality(settings, config.objectives)
    replace_file(file, json.dumps({"question": question, "rows": rows}, indent=1) + "\n")
    return rows


def all_tables(results: Results) -> list[tables.Table]:
    config = results.config
    samplers = [config.sampler]
    samplers += [s for s in next(iter(results.bases.values()))["eval"] if s != config.sampler]
    # The ablation's first label, the whole method, is also in the main tables.
    main = [label for label in config.objectives if label not in config.ablation[1:]]
    made = [tables.accuracy_table(results, main, s, f"Accuracy, sampler `{s}`") for s in samplers]
    for recipe in config.recipes:
        made += [tables.steps_table(results, main, recipe, s) for s in samplers[1:]]
    if config.ablation:
        title = f"Ablation of LFPO's branches, sampler `{config.sampler}`"
        made.append(tables.accuracy_table(results, config.ablation, config.sampler, title))
    made += [t for r in config.recipes if (t := tables.reach_table(results, r, config.sampler)) is not None]
    return made + [tables.gradient_table(results, r) for r in config.recipes]


def markdown_page(results: Results, made: list[tables.Table]) -> str:
    config = results.config
    lines = ["# Comparison of objectives", ""]
    lines += [f"{describe_environment()}; {', '.join(f'{k} {v}' for k, v in versions().items())}.", ""]
    lines += [tables.markdown(t) for t in made]
    for recipe in config.recipes:
        lines += [f"### Figures: {recipe}", "", f"![convergence](convergence-{recipe_name(recipe)}.svg)", ""]
        lines += [f"![straightness](straightness-{recipe_name(recipe)}.svg)", ""]
    lines += ["### Where the numbers come from", ""]
    lines += ["| task | objective | learning rate | knobs | runs |", "| --- | --- | ---: | --- | --- |"]
    for recipe in config.recipes:
        lines.append(f"| {recipe} | {BASE} | | | `{_relative(results.bases[recipe], config)}` |")
        for label, settings in config.objectives.items():
            rate = results.rates[recipe, label]
            knobs = ", ".join(f"{k} {v}" for k, v in settings.items() if k != "name")
            runs = f"`{Path(_relative(results.cells[recipe, label][0], config)).parent}/seed-*`"
            lines.append(f"| {recipe} | {label} | {rate:g} | {knobs} | {runs} |")
    lines += ["", "### Settings", "", "Run by `lfpo compare` with these:", "", "```yaml"]
    return "\n".join([*lines, yaml_text(to_dict(config)).rstrip(), "```", ""])


def _relative(result: dict[str, Any], config: CompareConfig) -> str:
    return str(Path(result["folder"]).relative_to(config.output_dir))


def as_json(results: Results, made: list[tables.Table]) -> dict[str, Any]:
    """The tables as data, and the result and folder of every cell they are made from."""
    return {
        "tables": [asdict(table) for table in made],
        "gradients": results.gradients,
        "bases": results.bases,
        "cells": [cell for cells in results.cells.values() for cell in cells],
        "environment": describe_environment(),
        "versions": versions(),
    }
