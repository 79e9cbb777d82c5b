"""Figures of a run or a comparison for a paper, as SVG and PDF: `lfpo report FOLDER --figures`."""

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lfpo.config.errors import UserError
from lfpo.config.files import writing
from lfpo.config.json import Json
from lfpo.report.charts import COLOURS, POLICY, SHARE, STYLES, Chart, shown
from lfpo.report.data import page_data
from lfpo.runs.directory import Run


def pyplot() -> Any:
    """matplotlib.pyplot, which draws into files only. Raises UserError where matplotlib, an extra, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib, which is not installed: pip install 'lfpo[figures]'")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def write_figures(run: Run) -> list[Path]:
    """Write `figures/NAME.svg` and `.pdf` into the folder of a run or a comparison; returns their paths."""
    plt = pyplot()
    style: Any = {"svg.hashsalt": "lfpo", "svg.fonttype": "none", "pdf.fonttype": 42, "font.size": 9, "axes.grid": True}
    style |= {"grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    style |= {"legend.fontsize": 8, "figure.autolayout": True, "figure.figsize": (5, 3.2)}
    data, written = page_data(run), []
    with plt.rc_context(style):
        for name, figure in [("comparison", _comparison(data))] if data["kind"] == "comparison" else _run_figures(data):
            for ending in ("svg", "pdf"):
                path = run.dir / "figures" / f"{name}.{ending}"
                with writing(path):
                    path.parent.mkdir(exist_ok=True)
                    # Without a date the same run gives the same file.
                    figure.savefig(path, metadata={"Date" if ending == "svg" else "CreationDate": None})
                written.append(path)
            plt.close(figure)
    return written


def _run_figures(data: Json) -> Iterator[tuple[str, Any]]:
    yield "convergence", _convergence(data)
    if any("accuracy" in e["last"] for e in data["evaluations"]):
        yield "steps-accuracy", _steps_accuracy(data)
    for reveal in (*data["samples"]["maps"], *([data["rollout_maps"]] if data["rollout_maps"] else [])):
        if reveal["panels"]:
            yield f"reveal-{reveal['sampler']}", _reveal(reveal)
    for chart in POLICY:
        if shown(chart, data["metrics"]):
            yield chart.title.lower().replace(" ", "-"), _chart(chart, data)


def _series(data: Json, *keys: str) -> list[list[float]]:
    """Iterations at which the first key was logged, and the values of all keys there."""
    metrics = data["metrics"]
    at = [i for i, v in enumerate(metrics.get(keys[0], [])) if v is not None]
    return [[metrics[k][i] for i in at] for k in ("step", *keys)]


def _chart(chart: Chart, data: Json) -> Any:
    """A chart of the page, over iterations; shares in percent."""
    figure, axis = pyplot().subplots()
    scale = 100 if chart.unit == SHARE else 1
    lines = shown(chart, data["metrics"])
    for line in lines:
        steps, values = _series(data, line.key)
        colour, style = COLOURS[line.colour % len(COLOURS)], STYLES[line.dashed]
        axis.plot(steps, [scale * v for v in values], style, color=colour, lw=1.4, label=line.name, clip_on=False)
    unit = "%" if chart.unit == SHARE else chart.unit
    axis.set(xlabel="iteration", ylabel=f"{chart.title} ({unit})" if unit else chart.title)
    axis.ticklabel_format(useOffset=False)
    axis.locator_params(axis="x", integer=True)
    if chart.from_zero:
        axis.set_ylim(bottom=0)
    if len(lines) > 1:
        axis.legend()
    return figure


def _convergence(data: Json) -> Any:
    """Training reward and held-out accuracy with its interval, over iterations."""
    figure, axis = pyplot().subplots()
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
    axis.legend()
    return figure


def _steps_accuracy(data: Json) -> Any:
    """Accuracy against NFE of each sampler, one point an evaluation; a ring marks the first."""
    figure, axis = pyplot().subplots()
    for i, evaluation in enumerate(e for e in data["evaluations"] if "accuracy" in e["last"]):
        name, colour = evaluation["name"], COLOURS[i % len(COLOURS)]
        _, accuracy, nfe, low, high = _series(data, *(f"eval/{name}/{k}" for k in ("accuracy", "nfe", "low", "high")))
        axis.plot(nfe, [100 * v for v in accuracy], "o-", ms=3.5, lw=1.2, color=colour, label=name)
        axis.plot(nfe[0], 100 * accuracy[0], "o", ms=8, mfc="none", color=colour)
        axis.vlines(nfe[-1], 100 * low[-1], 100 * high[-1], color=colour, lw=1, alpha=0.6)
    axis.set(xlabel="forwards a completion (NFE)", ylabel="held-out accuracy (%)")
    axis.set_xlim(left=0)
    axis.legend()
    return figure


def _reveal(reveal: Json) -> Any:
    """Share of completions that reveal a position at a step, in the first and the last iteration."""
    panels = reveal["panels"]
    figure, axes = pyplot().subplots(
        1, len(panels), figsize=(3.4 * len(panels) + 0.6, 3), sharey=True, squeeze=False, layout="constrained"
    )
    image: object = None
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


def _comparison(data: Json) -> Any:
    """Accuracy over forwards a completion, one point a threshold, and over training FLOPs: means over seeds, with bands
    from the lowest to the highest seed. Black and dotted: the untrained model."""
    figure, axes = pyplot().subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    scale, unit = (100, "held-out accuracy (%)") if data["measure"] == "accuracy" else (1, "held-out mean reward")
    lines = [curve for curve in data["curves"] if "learning" in curve]
    styles = itertools.product(STYLES, COLOURS)
    looks: list[Any] = [{"ls": style, "color": colour} for (style, colour), _ in zip(styles, lines, strict=False)]
    if base := next((curve for curve in data["curves"] if "learning" not in curve), None):
        lines, looks = [*lines, base], [*looks, {"ls": ":", "color": "#000000"}]
    for axis, key in zip(axes, ("frontier", "learning"), strict=True):
        for curve, look in zip(lines, looks, strict=True):
            if (at := curve.get(key)) is None:
                continue
            mean, low, high = ([scale * y for y in at[name]] for name in ("mean", "low", "high"))
            axis.plot(at["x"], mean, marker="o", ms=3, lw=1.5, label=curve["label"], **look)
            axis.fill_between(at["x"], low, high, color=look["color"], alpha=0.1, lw=0)
    axes[0].set_xscale("log", base=2)
    axes[0].xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes[0].set(xlabel="forwards a completion (NFE)", ylabel=unit, title="after training")
    axes[1].set(xlabel="TFLOPs of training", title="while training")
    axes[0].legend(loc="lower right")
    return figure
