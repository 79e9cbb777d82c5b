"""Figures for a paper, as SVG and PDF: `lfpo report FOLDER --figures`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.files import read_json
from lfpo.eval.statistics import over_seeds_and_problems
from lfpo.report.comparison import TERA, by_objective
from lfpo.report.data import is_comparison, run_data
from lfpo.report.simplex import draw_simplex
from lfpo.report.style import COLOURS, STYLES
from lfpo.runs.directory import Run


def write_figures(run: Run) -> list[Path]:
    """Write `figures/NAME.svg` and `.pdf` into the folder of a run or a comparison; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style: Any = {"svg.hashsalt": "lfpo", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "axes.grid": True}
    style |= {"grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    written = []
    with plt.rc_context(style):
        made = _comparison_figures(run.dir) if is_comparison(run.dir) else _run_figures(run_data(run))
        for name, figure in made:
            for ending in ("svg", "pdf"):
                path = run.dir / "figures" / f"{name}.{ending}"
                try:
                    path.parent.mkdir(exist_ok=True)
                    # Without a date the same run gives the same file.
                    figure.savefig(path, metadata={"Date" if ending == "svg" else "CreationDate": None})
                except OSError as error:
                    raise UserError(f"{path}: could not be written ({error.strerror or error})") from error
                written.append(path)
            plt.close(figure)
    return written


def _run_figures(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "convergence", _convergence(data)
    if any("accuracy" in e["last"] for e in data["evaluations"]):
        yield "steps-accuracy", _steps_accuracy(data)
    for reveal in (*data["samples"]["maps"], *([data["rollout_maps"]] if data["rollout_maps"] else [])):
        if reveal["panels"]:
            yield f"reveal-{reveal['sampler']}", _reveal(reveal)
    yield "simplex", draw_simplex()


def _series(data: dict[str, Any], *keys: str) -> list[list[float]]:
    """Iterations at which the first key was logged, and the values of all keys there."""
    metrics = data["metrics"]
    at = [i for i, v in enumerate(metrics.get(keys[0], [])) if v is not None]
    return [[metrics[k][i] for i in at] for k in ("step", *keys)]


def _convergence(data: dict[str, Any]) -> Any:
    """Training reward and held-out accuracy with its interval, over iterations."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.2))
    steps, reward = _series(data, "reward")
    axis.plot(steps, reward, color="#888888", lw=1, label="training reward")
    for i, evaluation in enumerate(data["evaluations"]):
        name, colour = evaluation["name"], COLOURS[i % len(COLOURS)]
        if "accuracy" in evaluation["last"]:
            steps, value, low, high = _series(data, *(f"eval/{name}/{k}" for k in ("accuracy", "low", "high")))
            axis.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
        else:
            steps, value = _series(data, f"eval/{name}/reward")
        axis.plot(steps, value, "o-", ms=3, lw=1.4, color=colour, label=f"held out, {name}")
    axis.set(xlabel="iteration", ylabel="reward, accuracy")
    axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def _steps_accuracy(data: dict[str, Any]) -> Any:
    """The way of each sampler through (NFE, accuracy) while training went on; the ring is where it began."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.2))
    for i, evaluation in enumerate(e for e in data["evaluations"] if "accuracy" in e["last"]):
        name, colour = evaluation["name"], COLOURS[i % len(COLOURS)]
        _, accuracy, nfe, low, high = _series(data, *(f"eval/{name}/{k}" for k in ("accuracy", "nfe", "low", "high")))
        axis.plot(nfe, [100 * v for v in accuracy], "o-", ms=3.5, lw=1.2, color=colour, label=name)
        axis.plot(nfe[0], 100 * accuracy[0], "o", ms=8, mfc="none", color=colour)
        axis.vlines(nfe[-1], 100 * low[-1], 100 * high[-1], color=colour, lw=1, alpha=0.6)
    axis.set(xlabel="forwards a completion (NFE)", ylabel="held-out accuracy (%)")
    axis.set_xlim(left=0)
    axis.legend(fontsize=8)
    figure.tight_layout()
    return figure


def _reveal(reveal: dict[str, Any]) -> Any:
    """Share of completions that reveal a position at a step, before and after."""
    import numpy as np
    from matplotlib import pyplot as plt

    panels = reveal["panels"]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.4 * len(panels) + 0.6, 3), sharey=True, squeeze=False, layout="constrained"
    )
    image: Any = None
    for axis, panel in zip(axes[0], panels, strict=True):
        grid = np.zeros((panel["height"], panel["width"]))
        for x, y, share in panel["cells"]:
            grid[y, x] = share
        extent = (0.5, panel["positions"] + 0.5, panel["steps"] + 0.5, 0.5)
        image = axis.imshow(grid, cmap="GnBu", vmin=0, vmax=1, aspect="auto", extent=extent, interpolation="nearest")
        axis.grid(visible=False)
        for side in (axis.xaxis, axis.yaxis):
            side.get_major_locator().set_params(integer=True)
        axis.set(title=f"iteration {panel['step']} (n = {panel['n']})", xlabel="position")
    axes[0][0].set_ylabel("denoising step")
    figure.colorbar(image, ax=axes[0].tolist(), label="share revealed")
    return figure


def _comparison_figures(folder: Path) -> Iterator[tuple[str, Any]]:
    results = read_json(folder / "results.json")
    for recipe in dict.fromkeys(c["recipe"] for c in results["cells"]):
        groups = by_objective(results, recipe)
        sampler = results["cells"][0]["sampler"]
        stem = Path(recipe).stem
        yield f"convergence-{stem}", _convergence_of_objectives(groups, sampler)
        for name in results["bases"].get(recipe, {}).get("eval", {}):
            yield f"steps-accuracy-{stem}-{name}", _objectives_by_steps(groups, results["bases"][recipe], name)
        labels = [row[0]["text"] for t in results["tables"] if t["title"].startswith("Ablation") for row in t["rows"]]
        if ablated := {label: groups[label] for label in dict.fromkeys(labels) if label in groups}:
            yield f"ablation-{stem}", _ablation(ablated, results["bases"][recipe], sampler)
    yield "simplex", draw_simplex()


def _convergence_of_objectives(groups: dict[str, list[dict[str, Any]]], sampler: str) -> Any:
    """Mean accuracy over seeds against seconds and against TFLOPs, from the lowest to the highest seed shaded."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
    for axis, key, unit, text in ((axes[0], "seconds", 1.0, "training time (s)"), (axes[1], "flops", TERA, "TFLOPs")):
        for i, (label, cells) in enumerate(groups.items()):
            points = list(zip(*(c["curve"] for c in cells), strict=False))
            x = [sum(p[key] for p in at) / len(at) / unit for at in points]
            ys = [[100 * p[sampler] for p in at] for at in points]
            colour, line = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
            axis.plot(x, [sum(y) / len(y) for y in ys], line, color=colour, lw=1.4, label=label)
            axis.fill_between(x, [min(y) for y in ys], [max(y) for y in ys], color=colour, alpha=0.07, lw=0)
        axis.set_xlabel(text)
    axes[0].set_ylabel(f"held-out accuracy, {sampler} (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=8)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    return figure


def _objectives_by_steps(groups: dict[str, list[dict[str, Any]]], base: dict[str, Any], sampler: str) -> Any:
    """Each objective's NFE and accuracy under one sampler, with 95 % intervals over seeds and problems."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.4))
    for i, (label, cells) in enumerate({"base": [base], **groups}.items()):
        found = over_seeds_and_problems([c["eval"][sampler]["correct"] for c in cells])
        nfe = [sum(c["eval"][sampler]["nfe"]) / len(c["eval"][sampler]["nfe"]) for c in cells]
        x, y = sum(nfe) / len(nfe), 100 * found.mean
        colour = "#000000" if label == "base" else COLOURS[(i - 1) % len(COLOURS)]
        spread = [[y - 100 * found.low], [100 * found.high - y]]
        axis.errorbar(x, y, yerr=spread, fmt="s" if label == "base" else "o", ms=4, lw=1, color=colour)
        axis.annotate(label, (x, y), (4, 3), textcoords="offset points", fontsize=7, color=colour)
    axis.set(xlabel="forwards a completion (NFE)", ylabel=f"held-out accuracy, {sampler} (%)")
    figure.tight_layout()
    return figure


def _ablation(groups: dict[str, list[dict[str, Any]]], base: dict[str, Any], sampler: str) -> Any:
    """Accuracy of the whole method and of its parts, with 95 % intervals over seeds and problems."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(4.2, 3))
    for i, (label, cells) in enumerate({"base": [base], **groups}.items()):
        found = over_seeds_and_problems([c["eval"][sampler]["correct"] for c in cells])
        y = 100 * found.mean
        spread = [[y - 100 * found.low], [100 * found.high - y]]
        axis.bar(
            i, y, yerr=spread, width=0.6, color="#999999" if label == "base" else COLOURS[0], alpha=0.85, capsize=3
        )
    axis.set_xticks(range(len(groups) + 1), ["base", *groups], rotation=15)
    axis.set_ylabel(f"held-out accuracy, {sampler} (%)")
    axis.grid(visible=False, axis="x")
    figure.tight_layout()
    return figure
