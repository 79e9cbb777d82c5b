"""The results of a comparison's cells, and the numbers of its tables and figures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from lfpo.compare.grid import read_result
from lfpo.compare.settings import BASE, Cell, CompareConfig
from lfpo.eval.estimates import Estimate, average_over_tasks, over_seeds, over_seeds_and_problems


@dataclass
class Results:
    """cells[recipe, objective]: results at the chosen learning rate, one a seed. bases[recipe]: the untrained model."""

    config: CompareConfig
    bases: dict[str, dict[str, Any]]
    cells: dict[tuple[str, str], list[dict[str, Any]]]
    rates: dict[tuple[str, str], float]
    gradients: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def load_results(config: CompareConfig, rates: dict[tuple[str, str], float]) -> Results:
    """Read the results of all cells at the rates that run_grid chose."""
    bases = {r: read_result(config, Cell(r, BASE, 0.0, 0)) for r in config.recipes}
    cells = {
        (r, o): [read_result(config, Cell(r, o, rate, seed)) for seed in range(config.seeds)]
        for (r, o), rate in rates.items()
    }
    return Results(config, bases, cells, rates)


def accuracy(results: Results, recipe: str, objective: str, sampler: str) -> tuple[Estimate, Estimate]:
    """Accuracy, and its difference from the base, over seeds and problems."""
    values = [c["eval"][sampler]["correct"] for c in results.cells[recipe, objective]]
    base = results.bases[recipe]["eval"][sampler]["correct"]
    return over_seeds_and_problems(values), over_seeds_and_problems(values, base)


def average(results: Results, objective: str, sampler: str) -> Estimate:
    """Accuracy averaged over the tasks."""
    return average_over_tasks(
        [[c["eval"][sampler]["correct"] for c in results.cells[r, objective]] for r in results.config.recipes]
    )


def quantity(results: Results, recipe: str, objective: str, sampler: str, name: str) -> tuple[Estimate, float]:
    """Steps or NFE a problem, and the relative change of their mean against the base."""
    values = [c["eval"][sampler][name] for c in results.cells[recipe, objective]]
    base = results.bases[recipe]["eval"][sampler][name]
    estimate = over_seeds_and_problems(values)
    return estimate, estimate.mean / (sum(base) / len(base)) - 1


def reach(results: Results, recipe: str, axis: str, sampler: str) -> dict[str, dict[str, Any]]:
    """For each objective, the cost (axis "seconds" or "flops") at which each seed first reaches the target's level.

    The level is the best mean accuracy over seeds on the target's curve. Costs are interpolated between evaluations;
    None stands for a seed that never reaches the level. "ratio" is the Estimate of the target's cost over the
    objective's, paired by seed. It is None unless every seed of both reaches the level, since a mean over the other
    seeds would favour an unreliable objective. Without a target the result is empty.
    """
    target = results.config.target
    if target is None:
        return {}
    curves = {o: [c["curve"] for c in results.cells[recipe, o]] for o in results.config.objectives}
    steps = range(len(curves[target][0]))
    level = max(sum(c[i][sampler] for c in curves[target]) / len(curves[target]) for i in steps)
    costs = {o: [cost_of_level(c, level, axis, sampler) for c in cs] for o, cs in curves.items()}
    table = {}
    for objective, found in costs.items():
        pairs = [(a, b) for a, b in zip(found, costs[target], strict=True) if a and b is not None]
        ratio = over_seeds([b / a for a, b in pairs]) if len(pairs) == len(found) else None
        table[objective] = {"level": level, "costs": found, "ratio": ratio}
    return table


def cost_of_level(curve: list[dict[str, float]], level: float, axis: str, sampler: str) -> float | None:
    """The cost at which a curve first reaches a level (that of its first point if it starts there); None if never."""
    if curve[0][sampler] >= level:
        return curve[0][axis]
    for before, after in itertools.pairwise(curve):
        if after[sampler] >= level > before[sampler]:
            share = (level - before[sampler]) / (after[sampler] - before[sampler])
            return before[axis] + share * (after[axis] - before[axis])
    return None
