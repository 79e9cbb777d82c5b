"""Figures of a comparison: convergence against time and FLOPs, and straightness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lfpo.compare.results import Results, reach
from lfpo.report import comparison_figures as draw


def convergence(results: Results, recipe: str, sampler: str, path: Path) -> None:
    """Mean accuracy over seeds against seconds and against FLOPs, from lowest to highest seed shaded; SVG and PNG."""
    plt = _pyplot()
    reached = reach(results, recipe, "seconds", sampler)
    level = (next(iter(reached.values()))["level"], f"best of {results.config.target}") if reached else None
    title = f"{recipe}: {results.config.seeds} seeds, band from lowest to highest"
    _save(plt, draw.convergence(_groups(results, recipe), sampler, level, title), path)


def straightness(results: Results, recipe: str, path: Path) -> None:
    """Share of masked positions whose argmax is already the final token, at each state, before and after training."""
    plt = _pyplot()
    title = f"{recipe}: predictions that agree with the final answer"
    base = results.bases[recipe]["straightness"]
    _save(plt, draw.straightness(_groups(results, recipe), base, results.config.sampler, title), path)


def _groups(results: Results, recipe: str) -> dict[str, list[dict[str, Any]]]:
    return {label: results.cells[recipe, label] for label in results.config.objectives}


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: Any = {"svg.hashsalt": "lfpo", "font.size": 10, "font.family": "sans-serif", "axes.grid": True}
    style |= {"grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False}
    matplotlib.rcParams.update(style)
    return pyplot


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})
    figure.savefig(path.with_name(path.name + ".png"), dpi=130)
    plt.close(figure)
