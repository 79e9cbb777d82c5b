"""The configuration of `lfpo compare` and the cells of its grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lfpo.base.checks import at_least_one
from lfpo.base.config import build, load_yaml, merge
from lfpo.base.errors import UserError, nearest
from lfpo.objectives import OBJECTIVES
from lfpo.train.config import LFPOConfig


@dataclass
class CompareConfig:
    """Configuration of `lfpo compare`.

    output_dir: folder for cells, tables and figures. A finished cell is never run again.
    recipes: training recipes, one a task; each cell is a recipe with an objective, a learning rate and a seed.
    overrides: keys that replace the same keys of every recipe, so that all cells have equal rollouts and evaluations.
    objectives: label -> objective settings ({name: ..., knob: ...}). On the command line a list of labels selects some.
    sampler: the eval sampler of learning curves, the ablation and the convergence figure. The recipes' other eval
        samplers are used on the trained models only. curve_problems: held-out problems of each point of a curve.
    inference_samplers: name -> sampler for the trained models (Table 3's decoding); the recipe gives the block length.
        They belong to no cell, so that adding one later trains nothing again.
    ablation: labels of the ablation table, the whole method first. The main tables leave out the others.
    target: label whose best level the other objectives have to reach in the convergence figure and table, if any.
    learning_rates: tried for every objective on seed 0; the one with the best validation accuracy is used.
    seeds: runs of each objective and task at its learning rate, with seeds 0, 1, ...
    validation: number of validation problems. They are of the training split, drawn with another seed, so in a task
        of few problems training may contain some of them.
    workers: cells that run at once. threads: CPU threads of each.
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
        if not self.learning_rates or len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            raise ValueError(f"'learning_rates' must be one or more different values, found {self.learning_rates}")
        self.output_dir = str(Path(self.output_dir).expanduser())
        if len({recipe_name(r) for r in self.recipes}) < len(self.recipes):
            raise ValueError(f"'recipes' {self.recipes} must have different file names")
        for label, knobs in self.objectives.items():
            if "name" not in knobs:
                raise ValueError(f"objective {label!r} has no 'name'")
            if label == BASE or "/" in label:
                raise ValueError(f"objective {label!r}: a label must not be {BASE!r} and must not contain '/'")
        if self.target is not None and self.target not in self.objectives:
            raise ValueError(f"'target' {self.target!r} is not among the objectives")
        for label in self.ablation:
            if label not in self.objectives:
                raise ValueError(f"'ablation' names {label!r}, which is not among the objectives")


def pick_objectives(values: dict[str, Any], labels: str | list[str]) -> dict[str, Any]:
    """`--objectives a,b` on the command line: keep these labels of the file, or add objectives by their names.

    Raises UserError for an unknown label.
    """
    names = labels.split(",") if isinstance(labels, str) else labels
    listed = values.get("objectives") or {}
    if not isinstance(listed, dict):
        raise UserError(f"lfpo compare: objectives: expected label: {{name: ...}} pairs, found {listed!r}")
    picked = {}
    for name in (str(n).strip() for n in names):
        if name not in listed and name not in OBJECTIVES and not set(".:") & set(name):
            known = list(dict.fromkeys([*listed, *OBJECTIVES]))
            raise UserError(f"--objectives: unknown {name!r}{nearest(name, known)}")
        picked[name] = listed.get(name, {"name": name})
    ablation = [label for label in values.get("ablation") or [] if label in picked]
    target = values.get("target") if values.get("target") in picked else None
    return {**values, "objectives": picked, "ablation": ablation, "target": target}


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
    """A recipe's name in tables and file names: its file name without folder and suffix."""
    return Path(recipe).stem


def cell_config(config: CompareConfig, cell: Cell) -> LFPOConfig:
    """The training configuration of a cell. Raises UserError when recipe, overrides or objective are not valid."""
    values = merge(load_yaml(cell.recipe), config.overrides)
    objective = config.objectives.get(cell.objective, {"name": "lfpo"})
    values |= {"objective": objective, "seed": cell.seed, "threads": config.threads}
    if cell.objective != BASE:
        values["learning_rate"] = cell.learning_rate
    values["output_dir"] = str(cell.folder(Path(config.output_dir)) / "run")
    built = build(LFPOConfig, values, f"lfpo compare: {cell.label}")
    if not built.eval_steps:
        raise UserError(f"recipe {cell.recipe}: eval_steps 0 switches evaluation off, which a comparison needs")
    if config.sampler not in built.eval_samplers:
        near = nearest(config.sampler, built.eval_samplers)
        raise UserError(f"recipe {cell.recipe}: has no eval sampler {config.sampler!r}{near}")
    return built
