"""Evaluates the models of finished cells under more samplers, without training again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lfpo.base.config import build, to_dict
from lfpo.base.files import read_json, replace_file
from lfpo.compare.cell import under_sampler
from lfpo.compare.results import Results
from lfpo.compare.settings import BASE, Cell, CompareConfig, cell_config
from lfpo.models import load_model, load_tokenizer
from lfpo.rollout.sampler import SamplerConfig


def add_inference(results: Results, report: Callable[[str], None]) -> None:
    """Evaluate every model of the tables under `inference_samplers`, and add the results to its `eval`.

    Each cell's inference.json keeps them, so that nothing is measured twice.
    """
    config = results.config
    if not config.inference_samplers:
        return
    for recipe in config.recipes:
        samplers = inference_samplers(config, recipe)
        found = [results.bases[recipe]] + [c for (r, _), cells in results.cells.items() if r == recipe for c in cells]
        for result in found:
            result["eval"] = {**result["eval"], **_measured(config, recipe, result, samplers, report)}


def inference_samplers(config: CompareConfig, recipe: str) -> dict[str, SamplerConfig]:
    """The configured samplers by name; the recipe gives the block length where they have none."""
    settings = cell_config(config, Cell(recipe, BASE, 0.0, 0))
    common = {"block_length": settings.sampler.block_length}
    return {
        name: build(SamplerConfig, {**common, **values}, f"lfpo compare: inference_samplers.{name}")
        for name, values in config.inference_samplers.items()
    }


def _measured(
    config: CompareConfig,
    recipe: str,
    result: dict[str, Any],
    samplers: dict[str, SamplerConfig],
    report: Callable[[str], None],
) -> dict[str, Any]:
    file = Path(result["folder"]) / "inference.json"
    question = {name: to_dict(sampler) for name, sampler in samplers.items()}
    if file.exists() and (stored := read_json(file))["question"] == question:
        return stored["eval"]
    cell = Cell(recipe, result["objective"], result["learning_rate"], result["seed"])
    settings = cell_config(config, cell)
    name = str(Path(settings.output_dir) / "model") if result["train"] else settings.model
    model, tokenizer = load_model(name), load_tokenizer(name)
    found = {label: under_sampler(model, tokenizer, settings, sampler) for label, sampler in samplers.items()}
    replace_file(file, json.dumps({"question": question, "eval": found}) + "\n")
    scores = ", ".join(
        f"{k} {100 * v['accuracy']:.1f} % in {sum(v['steps']) / len(v['steps']):.1f} steps" for k, v in found.items()
    )
    report(f"{cell.label}: {scores}")
    return found
