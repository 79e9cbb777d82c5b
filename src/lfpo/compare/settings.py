"""The configuration of `lfpo compare` and the cells of its grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lfpo.base.checks import at_least_one
from lfpo.base.config import build, load_yaml, merge
from lfpo.base.errors import UserError, nearest
from lfpo.train.config import LFPOConfig


@dataclass
class CompareConfig:
    """Configuration of `lfpo compare`.

    output_dir: where cells, tables and figures go. A cell that is finished there is never run again.
    recipes: training recipes, one a task; each cell is one of them with another objective, learning rate and seed.
    overrides: keys laid over every recipe, so that all cells have the same rollouts, samplers and evaluations.
    objectives: label -> objective settings ({name: ..., knob: ...}). On the command line a list of labels picks some.
    sampler: the eval sampler that learning curves, the ablation and the convergence figure are about. The recipes'
        other eval samplers are only used on the trained models. curve_problems: held-out problems behind each point.
    inference_samplers: name -> sampler, evaluated on the trained models too, in the recipe's own blocks (Table 3's
        decoding). They belong to no cell: adding one later trains nothing again.
    ablation: labels of the ablation table, the whole method first; the others stay out of the main tables.
    target: label whose best level the convergence figure measures the others against, if any.
    learning_rates: tried for every objective on seed 0; the best on validation problems is taken (one: no tuning).
    seeds: runs of each objective and task at its learning rate, seeds 0, 1, ...
    validation: problems of the training split, drawn with another seed, whose accuracy chooses learning rates
        (in a task of few problems some of them may be met in training).
    workers: cells run at once. threads: CPU threads of each.
    """

    output_dir: str
    recipes: list[str]
    objectives: dict[str, dict[str, Any]]
    learning_rates: list[float]
    overrides: dict[str, Any] = field(default_factory=dict)
    sampler: str = "sampled"
    curve_problems: int = 100
    inference_samplers: dict[str, dict[str, Any]] = field(default_factory=dict)
    ablation: list[str] = field(default_factory=list)
    target: str | None = None
    seeds: int = 3
    validation: int = 100
    workers: int = 2
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.recipes or not self.objectives:
            raise ValueError("'recipes' and 'objectives' must not be empty")
        at_least_one(self, "seeds", "validation", "curve_problems", "workers", "threads")
        if not self.learning_rates:
            raise ValueError("'learning_rates' needs at least one value")
        self.output_dir = str(Path(self.output_dir).expanduser())
        if len({recipe_name(r) for r in self.recipes}) < len(self.recipes):
            raise ValueError(f"'recipes' {self.recipes} are not told apart by their file names")
        for label, knobs in self.objectives.items():
            if "name" not in knobs:
                raise ValueError(f"objective {label!r} has no 'name'")
            if label == BASE or "/" in label:
                raise ValueError(f"{label!r} cannot be an objective's label")
        if self.target is not None and self.target not in self.objectives:
            raise ValueError(f"'target' {self.target!r} is not among the objectives")
        for label in self.ablation:
            if label not in self.objectives:
                raise ValueError(f"'ablation' names {label!r}, which is not among the objectives")


@dataclass(frozen=True)
class Cell:
    """One training run of the grid, or (objective "base") an evaluation of the untrained model."""

    recipe: str
    objective: str
    learning_rate: float
    seed: int

    def folder(self, root: Path) -> Path:
        cells = root / "cells" / recipe_name(self.recipe)
        if self.objective == BASE:
            return cells / BASE
        return cells / self.objective / f"lr-{self.learning_rate:g}" / f"seed-{self.seed}"

    @property
    def label(self) -> str:
        if self.objective == BASE:
            return f"{self.recipe} / base"
        return f"{self.recipe} / {self.objective} / lr {self.learning_rate:g} / seed {self.seed}"


BASE = "base"


def recipe_name(recipe: str) -> str:
    """What a recipe is called in tables and file names: its own name, without folder and ending."""
    return Path(recipe).stem


def cell_config(config: CompareConfig, cell: Cell) -> LFPOConfig:
    """The training configuration of a cell. Raises UserError when recipe, overrides or objective do not fit."""
    values = merge(load_yaml(cell.recipe), config.overrides)
    objective = config.objectives.get(cell.objective, {"name": "lfpo"})
    values |= {"objective": objective, "seed": cell.seed, "threads": config.threads}
    if cell.objective != BASE:
        values["learning_rate"] = cell.learning_rate
    values["output_dir"] = str(cell.folder(Path(config.output_dir)) / "run")
    built = build(LFPOConfig, values, f"lfpo compare: {cell.label}")
    if config.sampler not in built.eval_samplers:
        near = nearest(config.sampler, built.eval_samplers)
        raise UserError(f"recipe {cell.recipe}: has no eval sampler {config.sampler!r}{near}")
    return built
