"""`lfpo compare`: run the grid, then write tables (Markdown, LaTeX, JSON) and figures (SVG, PNG)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError, nearest
from ..run import describe_environment, replace_file, versions
from ..train_config import LFPOConfig
from . import figures, tables
from .gradients import gradient_quality
from .grid import run_grid
from .results import Results, load_results
from .settings import BASE, Cell, CompareConfig, cell_config


def pick_objectives(values: dict[str, Any], labels: str | list[str]) -> dict[str, Any]:
    """`--objectives a,b` on the command line: only these labels of the file; a bare objective's name works too."""
    from ..objectives import OBJECTIVES

    names = labels.split(",") if isinstance(labels, str) else labels
    listed = values.get("objectives", {})
    picked = {}
    for name in (n.strip() for n in names):
        if name not in listed and name not in OBJECTIVES and "." not in name:
            raise UserError(f"--objectives: unknown {name!r}{nearest(name, [*listed, *OBJECTIVES])}")
        picked[name] = listed.get(name, {"name": name})
    ablation = [label for label in values.get("ablation", []) if label in picked]
    return {**values, "objectives": picked, "ablation": ablation}


def run_compare(config: CompareConfig, report: Callable[[str], None] = print) -> Path:
    """Run what is missing of the grid and write everything; returns the path of the Markdown page."""
    for recipe in config.recipes:  # every cell's settings are checked before any runs
        for objective in config.objectives:
            check_objective(cell_config(config, Cell(recipe, objective, config.learning_rates[0], 0)))
    rates = run_grid(config, report)
    results = load_results(config, rates)
    root = Path(config.output_dir)
    for recipe in config.recipes:
        results.gradients[recipe] = cached_gradients(config, recipe, root)
    for recipe in config.recipes:
        figures.convergence(results, recipe, config.sampler, root / f"convergence-{recipe}")
        figures.straightness(results, recipe, root / f"straightness-{recipe}")
    made = all_tables(results)
    page = root / "README.md"
    replace_file(page, markdown_page(results, made))
    replace_file(root / "tables.tex", "\n".join(tables.latex(t) for t in made))
    replace_file(root / "results.json", json.dumps(as_json(results, made), indent=1) + "\n")
    report(f"wrote {page}")
    return page


def check_objective(config: LFPOConfig) -> None:
    from ..objectives import make_objective

    make_objective(config.objective)


def cached_gradients(config: CompareConfig, recipe: str, root: Path) -> list[dict[str, Any]]:
    """Gradient quality on one recipe, computed once."""
    file = root / f"gradients-{recipe}.json"
    if not file.exists():
        settings = cell_config(config, Cell(recipe, next(iter(config.objectives)), config.learning_rates[0], 0))
        replace_file(file, json.dumps(gradient_quality(settings, config.objectives), indent=1) + "\n")
    return json.loads(file.read_text())


def all_tables(results: Results) -> list[tables.Table]:
    config = results.config
    samplers = [config.sampler]
    samplers += [s for s in next(iter(results.bases.values()))["eval"] if s != config.sampler]
    main = [label for label in config.objectives if label not in config.ablation or label == "lfpo"]
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
        lines += [f"### Figures: {recipe}", "", f"![convergence](convergence-{recipe}.svg)", ""]
        lines += [f"![straightness](straightness-{recipe}.svg)", ""]
    lines += ["### Where the numbers come from", ""]
    lines += ["| task | objective | learning rate | knobs | runs |", "| --- | --- | ---: | --- | --- |"]
    for recipe in config.recipes:
        lines.append(f"| {recipe} | {BASE} | | | `{_relative(results.bases[recipe], config)}` |")
        for label, settings in config.objectives.items():
            rate = results.rates[recipe, label]
            knobs = ", ".join(f"{k} {v}" for k, v in settings.items() if k != "name")
            runs = f"`{Path(_relative(results.cells[recipe, label][0], config)).parent}/seed-*`"
            lines.append(f"| {recipe} | {label} | {rate:g} | {knobs} | {runs} |")
    return "\n".join([*lines, ""])


def _relative(result: dict[str, Any], config: CompareConfig) -> str:
    return str(Path(result["folder"]).relative_to(config.output_dir))


def as_json(results: Results, made: list[tables.Table]) -> dict[str, Any]:
    """Tables as data, and every result they were made from with its folder."""
    return {
        "tables": [
            {
                "title": t.title,
                "caption": t.caption,
                "columns": t.columns,
                "rows": [[vars(entry) for entry in row] for row in t.rows],
            }
            for t in made
        ],
        "gradients": results.gradients,
        "bases": results.bases,
        "cells": [cell for cells in results.cells.values() for cell in cells],
        "environment": describe_environment(),
        "versions": versions(),
    }
