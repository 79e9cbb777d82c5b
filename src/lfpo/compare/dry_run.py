"""`lfpo compare --dry_run`: the cells of a grid, their FLOPs and core-hours, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lfpo.compare.grid import Grid, bases, first_trials
from lfpo.compare.settings import BASE, Cell, cell_config

# The cost model: model FLOPs a second of one core, where the store has no finished cell to measure it on, and seconds
# that a cell takes besides (start, checkpoints, straightness). Measured on two cores of a cloud machine.
CORE_FLOPS = 50e9
OVERHEAD = 12.0


@dataclass
class Part:
    """Cells of one arm and kind: how many, how many of them are not finished, and what those take."""

    cells: int = 0
    missing: int = 0
    flops: float = 0.0
    seconds: float = 0.0


def dry_run(grid: Grid, report: Callable[[str], None]) -> float:
    """Print the plan and return the core-hours that are left. FLOPs come from probes of the cells."""
    config, parts = grid.config, dict[str, Part]()
    rate, measured = core_flops(grid)
    first: dict[str, Cell] = {}  # arms may share cells
    for cell in all_cells(grid):
        first.setdefault(grid.key(cell), cell)
    for key, cell in first.items():
        kind = "base" if cell.objective == BASE else "tuning" if cell.tuning else "evaluation"
        part = parts.setdefault(f"{cell.arm}, {kind}", Part())
        part.cells += 1
        if key in grid.store.results:
            continue
        flops = cell_flops(grid, cell)
        part.missing += 1
        part.flops += flops
        part.seconds += flops / rate + OVERHEAD
    report(f"{'cells':32} {'all':>5} {'left':>5} {'TFLOPs':>9} {'core-hours':>11}")
    total = Part()
    for name, part in parts.items():
        for field in ("cells", "missing", "flops", "seconds"):
            setattr(total, field, getattr(total, field) + getattr(part, field))
        report(_line(name, part))
    report(_line("all", total))
    how = "of the finished cells" if measured else "stated, no cell is finished"
    report(
        f"{rate / 1e9:.0f} model GFLOPs a second of one core ({how}) and {OVERHEAD:.0f} s a cell; FLOPs as the "
        f"untrained model has them, for threshold rollouts an upper bound; {config.workers} cells at once"
    )
    return total.seconds / 3600


def _line(name: str, part: Part) -> str:
    return f"{name:32} {part.cells:5d} {part.missing:5d} {part.flops / 1e12:9.0f} {part.seconds / 3600:11.2f}"


def all_cells(grid: Grid) -> list[Cell]:
    """Every cell of the grid, each once. Rates and knobs that are not chosen yet are stood for by the first ones."""
    config = grid.config
    cells = [*bases(config), *first_trials(config), *grid.second_trials(otherwise=config.learning_rates[0])]
    for name, part in config.arms.items():
        for recipe in part.recipes:
            for label in part.objectives:
                rate, chosen = grid.choice(name, recipe, label) or (config.learning_rates[0], "{}")
                cells += [
                    Cell(name, recipe, label, rate, seed, chosen) for seed in config.evaluation_seeds[: part.seeds]
                ]
    return cells


def cell_flops(grid: Grid, cell: Cell) -> float:
    """FLOPs of one cell: training, the evaluations of its curve, its frontier and its other eval samplers."""
    config, settings = grid.config, cell_config(grid.config, cell)
    untrained = Cell(cell.arm, cell.recipe, BASE, 0.0, 0)
    evaluation = grid.probes.of(cell_config(config, untrained), untrained)
    # What one of the other eval samplers costs is not measured: as much as the whole frontier is too much for most.
    measured = (evaluation.flops + (1 + len(config.samplers)) * evaluation.frontier) * config.problems
    if cell.objective == BASE:
        return measured
    training = grid.probes.of(settings, cell).flops * settings.max_steps
    if cell.tuning:
        return training + evaluation.frontier * config.validation
    evaluations = sum(settings.evaluates_after(step) for step in range(settings.max_steps + 1))
    return training + evaluations * evaluation.flops * config.problems + measured


def core_flops(grid: Grid) -> tuple[float, bool]:
    """Model FLOPs of training a second of one core, and whether finished cells say so."""
    # The store keeps gradient noise, too, which has neither.
    found = [r for r in grid.store.results.values() if r.get("flops") and r.get("training_seconds")]
    tuning = [r for r in found if not r["curve"]]  # nothing but training in these seconds
    if not tuning:
        return CORE_FLOPS, False
    return sum(r["flops"] for r in tuning) / sum(r["training_seconds"] for r in tuning), True
