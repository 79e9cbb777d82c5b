"""Figures of a comparison: accuracy against training cost and against NFE, and the ablation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lfpo.base.files import read_json
from lfpo.eval.estimates import over_seeds_and_problems
from lfpo.report.comparison import TERA, by_objective
from lfpo.report.simplex import draw_simplex
from lfpo.report.style import COLOURS, STYLES


def comparison_figures(folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, figure) for each figure of a folder of `lfpo compare`."""
    results = read_json(folder / "results.json")
    for recipe in dict.fromkeys(c["recipe"] for c in results["cells"]):
        groups = by_objective(results, recipe)
        sampler = results["cells"][0]["sampler"]
        stem = Path(recipe).stem
        yield f"convergence-{stem}", _convergence(groups, sampler)
        for name in results["bases"].get(recipe, {}).get("eval", {}):
            yield f"steps-accuracy-{stem}-{name}", _objectives_by_steps(groups, results["bases"][recipe], name)
        labels = [row[0]["text"] for t in results["tables"] if t["title"].startswith("Ablation") for row in t["rows"]]
        if ablated := {label: groups[label] for label in dict.fromkeys(labels) if label in groups}:
            yield f"ablation-{stem}", _ablation(ablated, results["bases"][recipe], sampler)
    yield "simplex", draw_simplex()


def _convergence(groups: dict[str, list[dict[str, Any]]], sampler: str) -> Any:
    """Mean accuracy over seeds against seconds and against TFLOPs, with a band from the lowest to the highest seed."""
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
