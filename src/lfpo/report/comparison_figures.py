"""Figures of a comparison: accuracy against training cost and against NFE, and the ablation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lfpo.base.files import read_json
from lfpo.eval.estimates import over_seeds_and_problems
from lfpo.report.comparison import TERA, by_objective
from lfpo.report.simplex import draw_simplex
from lfpo.report.style import COLOURS

STRONG = 4  # objectives that stand out; the others are thin and grey
GREY = "#9a9a9a"


def comparison_figures(folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, figure) for each figure of a folder of `lfpo compare`."""
    results = read_json(folder / "results.json")
    for recipe in dict.fromkeys(c["recipe"] for c in results["cells"]):
        groups = by_objective(results, recipe)
        sampler = results["cells"][0]["sampler"]
        stem = Path(recipe).stem
        yield f"convergence-{stem}", convergence(groups, sampler)
        for name in results["bases"].get(recipe, {}).get("eval", {}):
            yield f"steps-accuracy-{stem}-{name}", _objectives_by_steps(groups, results["bases"][recipe], name)
        labels = [row[0]["text"] for t in results["tables"] if t["title"].startswith("Ablation") for row in t["rows"]]
        if ablated := {label: groups[label] for label in dict.fromkeys(labels) if label in groups}:
            yield f"ablation-{stem}", _ablation(ablated, results["bases"][recipe], sampler)
    yield "simplex", draw_simplex()


def standing_out(groups: dict[str, list[dict[str, Any]]], sampler: str) -> dict[str, str]:
    """Colours of the objectives that stand out: the first one, and those of the best accuracy under a sampler."""
    first, *others = groups
    accuracy = {label: sum(c["eval"][sampler]["accuracy"] for c in cells) for label, cells in groups.items()}
    best = sorted(others, key=lambda label: -accuracy[label] / len(groups[label]))[: STRONG - 1]
    return dict(zip([first, *best], COLOURS, strict=False))


def convergence(
    groups: dict[str, list[dict[str, Any]]], sampler: str, level: tuple[float, str] | None = None, title: str = ""
) -> Any:
    """Mean accuracy over seeds against seconds and against TFLOPs, with a band from the lowest to the highest seed for
    the objectives that stand out, and all names to the right.

    groups: cells by objective. level: an accuracy to mark, and what it is.
    """
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
    colours = standing_out(groups, sampler)
    ends: dict[str, float] = {}
    lowest = 100.0
    for axis, key, unit, text in ((axes[0], "seconds", 1.0, "training time (s)"), (axes[1], "flops", TERA, "TFLOPs")):
        for label, cells in groups.items():
            points = list(zip(*(c["curve"] for c in cells), strict=False))
            x = [sum(p[key] for p in at) / len(at) / unit for at in points]
            ys = [[100 * p[sampler] for p in at] for at in points]
            means = [sum(y) / len(y) for y in ys]
            ends[label] = means[-1]
            if label in colours:
                axis.plot(x, means, color=colours[label], lw=1.6, zorder=3)
                lowest = min(lowest, *(min(y) for y in ys))
                axis.fill_between(x, [min(y) for y in ys], [max(y) for y in ys], color=colours[label], alpha=0.1, lw=0)
            else:
                axis.plot(x, means, color=GREY, lw=0.8, alpha=0.6)
        axis.set_xlabel(text)
        if level:
            axis.axhline(100 * level[0], color="#666666", lw=0.8, ls=(0, (6, 3)))
    if level:
        axes[0].annotate(level[1], (0, 100 * level[0]), fontsize=8, color="#666666", va="bottom")
    axes[0].set_ylabel(f"held-out accuracy, {sampler} (%)")
    axes[0].set_ylim(bottom=max(axes[0].get_ylim()[0], lowest - 4))  # cut to what stands out
    name_lines(axes[1], ends, colours)
    figure.suptitle(title)
    figure.tight_layout()
    return figure


def name_lines(axis: Any, ends: dict[str, float], colours: dict[str, str]) -> None:
    """Write the names of lines to the right of an axis at about the height of their ends, without overlap; the names of
    lines that end below the axis have their last value."""
    low, high = axis.get_ylim()
    gap, y = 0.062 * (high - low), high + 1.0
    for label in sorted(ends, key=lambda name: -ends[name]):
        y = min(max(ends[label], low), y - gap)
        bold = "bold" if label in colours else "normal"
        axis.annotate(
            label if ends[label] >= low else f"{label}, below: {ends[label]:.0f}",
            (1.02, y),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            color=colours.get(label, "#666666"),
            weight=bold,
            va="center",
            annotation_clip=False,
        )


def straightness(groups: dict[str, list[dict[str, Any]]], base: list[float], sampler: str, title: str = "") -> Any:
    """Share of masked positions whose argmax is already the final token, at each state; the legend has the means."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.4))
    colours = standing_out(groups, sampler)
    runs = {"base": [base]} | {label: [c["straightness"] for c in cells] for label, cells in groups.items()}
    for label, rows in runs.items():
        means = [100 * sum(values) / len(values) for values in zip(*rows, strict=False)]
        colour = "#000000" if label == "base" else colours.get(label, GREY)
        strong = label == "base" or label in colours
        name = f"{label}, mean {sum(means) / len(means):.1f} %"
        axis.plot(
            means,
            ":" if label == "base" else "-",
            color=colour,
            lw=1.6 if strong else 0.8,
            alpha=1 if strong else 0.6,
            label=name,
        )
    axis.set(xlabel="denoising state (greedy, one token a step)", ylabel="masked positions already right (%)")
    figure.legend(*axis.get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=7, frameon=False)
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0.16, 1, 1))
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
    """Accuracy of the whole method and of each ablation, with 95 % intervals over seeds and problems."""
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
