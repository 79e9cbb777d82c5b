"""Figures of a comparison: convergence against time and FLOPs, and straightness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lfpo.compare.results import Results, reach
from lfpo.compare.settings import BASE
from lfpo.report.style import COLOURS, STYLES


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i // len(COLOURS) % len(STYLES)], "lw": 1.6}


def convergence(results: Results, recipe: str, sampler: str, path: Path) -> None:
    """Mean accuracy over seeds against seconds and against FLOPs, from lowest to highest seed shaded; SVG and PNG."""
    plt = _pyplot()
    labels = list(results.config.objectives)
    figure, axes = plt.subplots(1, 2, figsize=(11, 5), sharey=True)
    for axis, name, unit, text in (
        (axes[0], "seconds", 1.0, "training time (s)"),
        (axes[1], "flops", 1e12, "model TFLOPs"),
    ):
        for i, label in enumerate(labels):
            curves = [c["curve"] for c in results.cells[recipe, label]]
            x = [sum(c[j][name] for c in curves) / len(curves) / unit for j in range(len(curves[0]))]
            ys = [[100 * c[j][sampler] for c in curves] for j in range(len(curves[0]))]
            axis.plot(x, [sum(y) / len(y) for y in ys], "o", ms=2.5, label=label, **_style(i))
            axis.fill_between(x, [min(y) for y in ys], [max(y) for y in ys], color=_style(i)["color"], alpha=0.08, lw=0)
        axis.set_xlabel(text)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    reached = reach(results, recipe, "seconds", sampler)
    if reached:
        level = 100 * next(iter(reached.values()))["level"]
        for axis in axes:
            axis.axhline(level, color="#666666", lw=0.8, ls=(0, (6, 3)))
        axes[0].annotate(f"best of {results.config.target}", (0, level), fontsize=8, color="#666666", va="bottom")
    axes[0].set_ylabel(f"held-out accuracy, {sampler} (%)")
    _save(figure, axes[0], path, f"{recipe}: {results.config.seeds} seeds, band from lowest to highest")


def straightness(results: Results, recipe: str, path: Path) -> None:
    """Share of masked positions whose argmax is already the final token, at each state, before and after training."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 5))
    before = results.bases[recipe]["straightness"]
    axis.plot(range(len(before)), [100 * v for v in before], color="#888888", lw=3, alpha=0.6, label=BASE)
    for i, label in enumerate(results.config.objectives):
        runs = [c["straightness"] for c in results.cells[recipe, label]]
        length = min(len(r) for r in runs)
        axis.plot(
            range(length), [100 * sum(r[j] for r in runs) / len(runs) for j in range(length)], label=label, **_style(i)
        )
    axis.set_xlabel("denoising state (greedy, one token a step)")
    axis.set_ylabel("masked positions already right (%)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    _save(figure, axis, path, f"{recipe}: predictions that agree with the final answer")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "lfpo", "font.size": 10, "font.family": "sans-serif"})
    return pyplot


def _save(figure: Any, axis: Any, path: Path, title: str) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.suptitle(title)
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})
    figure.savefig(path.with_name(path.name + ".png"), dpi=130)
    _pyplot().close(figure)
