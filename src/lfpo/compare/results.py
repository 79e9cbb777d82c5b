"""The results of a comparison's cells, and the numbers of its tables and figures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lfpo.compare.endpoints import PRIMARY, best_level, budgets, cost_of_level, endpoints
from lfpo.compare.grid import Grid, Trial, bases
from lfpo.compare.settings import CompareConfig, recipe_name
from lfpo.compare.statistics import bootstrap, iqm, paired, profile
from lfpo.eval.estimates import Estimate, over_seeds


@dataclass
class Results:
    """cells[setting][label]: finished cells, by seed; each has its `endpoints`. A setting is ARM/RECIPE.

    bases[setting]: the untrained model, if its cell finished. missing: label of a cell -> why it has no result.
    gradients[setting]: rows of gradient noise.
    """

    config: CompareConfig
    cells: dict[str, dict[str, list[dict[str, Any]]]]
    bases: dict[str, dict[str, Any]]
    trials: list[Trial]
    missing: dict[str, str]
    gradients: dict[str, list[dict[str, Any]]]

    def seeds(self, setting: str) -> int:
        """How many seeds each objective has in a setting, if nothing is missing."""
        return self.config.arms[setting.partition("/")[0]].seeds


def load_results(grid: Grid) -> Results:
    """Read all finished cells of a grid that has run."""
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    missing = dict(grid.failed)
    for name, arm in grid.config.arms.items():
        for recipe in arm.recipes:
            for label in arm.objectives:
                if grid.choice(name, recipe, label) is None:
                    missing[f"{name} / {recipe} / {label}"] = "no trial of its tuning finished"
    for cell in grid.evaluations():
        result = grid.result(cell)
        labels = cells.setdefault(cell.setting, {label: [] for label in grid.config.arms[cell.arm].objectives})
        if result is None:
            missing.setdefault(cell.label, "was not run")
        else:
            labels[cell.objective].append(result)
    for labels in cells.values():
        found = [c for seeds in labels.values() for c in seeds]
        for c in found:
            c["endpoints"] = endpoints(c, budgets([c["curve"] for c in found]))
    base = {cell.setting: r for cell in bases(grid.config) if (r := grid.result(cell)) is not None}
    return Results(grid.config, cells, base, grid.trials, missing, {})


def scores(results: Results, settings: list[str], label: str, endpoint: str = PRIMARY) -> list[list[float]]:
    """An endpoint of an objective: settings, then seeds. A setting in which it has no cell is left out."""
    found = [results.cells[s].get(label, []) for s in settings if s in results.cells]
    return [[c["endpoints"][endpoint] for c in seeds] for seeds in found if seeds]


def pairs(
    results: Results, settings: list[str], a: str, b: str, endpoint: str = PRIMARY
) -> tuple[list[list[float]], list[list[float]]]:
    """An endpoint of two objectives on the seeds that both have, setting by setting."""
    return matched(results, [((setting, a), (setting, b)) for setting in settings], endpoint)


def matched(
    results: Results, places: list[tuple[tuple[str, str], tuple[str, str]]], endpoint: str = PRIMARY
) -> tuple[list[list[float]], list[list[float]]]:
    """An endpoint at two places each, a setting and an objective, on the seeds that both have."""
    first, second = [], []
    for two in places:
        values = [{c["seed"]: c["endpoints"][endpoint] for c in results.cells.get(s, {}).get(o, [])} for s, o in two]
        if common := [seed for seed in values[0] if seed in values[1]]:
            first.append([values[0][seed] for seed in common])
            second.append([values[1][seed] for seed in common])
    return first, second


@dataclass(frozen=True)
class ArmResult:
    """The primary endpoint of an objective in one arm, over all recipes of the baseline that the arm has.

    area: interquartile mean over runs. runs: how many there are. against: mean difference to the baseline on the same
    recipes and seeds, None for the baseline itself and without a common seed. detectable: see `paired`; None for fewer
    than two such runs. pairs: how many there are.
    """

    arm: str
    area: Estimate
    runs: int
    against: Estimate | None
    detectable: float | None
    pairs: int


def arm_results(results: Results, label: str) -> list[ArmResult]:
    """An objective in the baseline and in the arms that share a recipe with it; [] without a baseline."""
    config, found = results.config, list[ArmResult]()
    if config.baseline is None or label not in config.arms[config.baseline].objectives:
        return []
    recipes = [recipe_name(r) for r in config.arms[config.baseline].recipes]
    for name in config.arms:
        settings = [f"{name}/{recipe}" for recipe in recipes]
        own = scores(results, settings, label)
        if not own:
            continue
        places = [((s, label), (f"{config.baseline}/{r}", label)) for s, r in zip(settings, recipes, strict=True)]
        a, b = matched(results, places) if name != config.baseline else ([], [])
        difference, seen = paired(a, b) if a else (None, math.nan)
        visible = None if math.isnan(seen) else seen
        found.append(ArmResult(name, bootstrap(iqm, own), sum(map(len, own)), difference, visible, sum(map(len, a))))
    return found


def profiles(results: Results, arm: str) -> dict[str, Any]:
    """Performance profiles of an arm's objectives over its tasks, from a point below all runs to one above. Without
    objectives that have no run on one of the tasks: profiles over different tasks cannot be compared."""
    settings = [s for s in results.cells if s.partition("/")[0] == arm and any(results.cells[s].values())]
    found = {label: scores(results, settings, label) for label in results.config.arms[arm].objectives}
    found = {label: tasks for label, tasks in found.items() if len(tasks) == len(settings)}
    every = [x for tasks in found.values() for seeds in tasks for x in seeds]
    if not every:
        return {}
    low, high = min(every) - 0.01, max(every) + 0.01
    levels = [low + (high - low) * i / 80 for i in range(81)]
    return {"levels": levels, **{label: [asdict(e) for e in profile(tasks, levels)] for label, tasks in found.items()}}


def reach(results: Results, setting: str) -> dict[str, dict[str, Any]]:
    """For each objective of a setting, the FLOPs at which each seed first reaches the target's level.

    The level is the mean over seeds of the target's best. Costs are interpolated between evaluations; None stands for a
    seed that never reaches it. "ratio" is the Estimate of the objective's cost over the target's, paired by seed; None
    unless every seed of both reaches the level, since a mean over the other seeds would favour an unreliable objective.
    Empty without a target.
    """
    target, labels = results.config.target, results.cells[setting]
    if target is None or not labels.get(target):
        return {}
    level = sum(best_level(c["curve"]) for c in labels[target]) / len(labels[target])
    costs = {o: {c["seed"]: cost_of_level(c["curve"], level, "flops") for c in cs} for o, cs in labels.items() if cs}
    table = {}
    for label, found in costs.items():
        both = [(cost, costs[target].get(seed)) for seed, cost in found.items()]
        full = [cost / other for cost, other in both if cost is not None and other]
        ratio = over_seeds(full) if len(full) == len(found) else None
        table[label] = {"level": level, "costs": list(found.values()), "ratio": ratio}
    return table
