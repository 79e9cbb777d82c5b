"""Draws a stage's settings: accuracy over forwards, one panel a task, or the area over the length of completions.

    python -m research.figure research/best-lfpo.yaml --output docs/images/comparison.svg
    python -m research.figure research/length.yaml --base base --over length --output docs/images/length.svg

Lines are means over seeds. Forwards: a point a threshold. Length: a point a task. Small points are seeds (up to five of
them where the axis is forwards).
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import yaml

from lfpo.report.charts import COLOURS
from research.study import cells_of
from research.tables import Row, area, finished, mean

matplotlib.use("Agg")

Rows = dict[tuple[str, str], dict[int, Row]]


def style(number: int) -> dict[str, Any]:
    """The look of the setting of a number; the untrained model is the first."""
    return {"color": COLOURS[number - 1]} if number else {"color": "0.5", "linestyle": ":"}


def over_forwards(axis: Any, rows: Rows, task: str, settings: list[str]) -> None:
    for number, setting in enumerate(settings):
        if cells := list(rows.get((task, setting), {}).values()):
            points = list(zip(*(cell["frontier"] for cell in cells), strict=True))
            forwards = [mean([p["nfe"] for p in at]) for at in points]
            accuracy = [100 * mean([p["accuracy"] for p in at]) for at in points]
            axis.plot(forwards, accuracy, marker=".", label=setting, **style(number))
            if 1 < len(cells) <= 5:  # few enough to be told apart
                each = [(p["nfe"], 100 * p["accuracy"]) for cell in cells for p in cell["frontier"]]
                axis.plot(*zip(*each, strict=True), ".", markersize=4, alpha=0.5, color=style(number)["color"])
    axis.set(title=task, xlabel="forwards", xscale="log", xticks=(1, 2, 4, 8, 16), xticklabels=(1, 2, 4, 8, 16))


def over_length(axis: Any, rows: Rows, tasks: list[str], settings: list[str]) -> None:
    lengths = [
        next(row["forwards"] for (of, _), cells in rows.items() if of == task for row in cells.values())
        for task in tasks
    ]
    for number, setting in enumerate(settings):
        areas = [[area(row) for row in rows.get((task, setting), {}).values()] for task in tasks]
        found = [(length, values) for length, values in zip(lengths, areas, strict=True) if values]
        axis.plot([x for x, _ in found], [mean(values) for _, values in found], label=setting, **style(number))
        for x, values in found:
            axis.plot([x] * len(values), values, ".", markersize=3, color=style(number)["color"])
    axis.set(xlabel="completion length, tokens", xscale="log", xticks=lengths, xticklabels=lengths)


def main() -> None:
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--stage", default="evaluation")
    parser.add_argument("--base", default="base-evaluation", help="the stage of the untrained model")
    parser.add_argument("--over", choices=("forwards", "length"), default="forwards")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    study, results = yaml.safe_load(args.study.read_text()), args.study.with_suffix(".jsonl")
    rows = finished(study, results, args.base) | finished(study, results, args.stage)
    tasks = [task for task in study["stages"][args.stage]["tasks"] if any(of == task and s != "base" for of, s in rows)]
    settings = list(dict.fromkeys(["base", *(cell["setting"] for cell in cells_of(study, args.stage))]))
    panels = len(tasks) if args.over == "forwards" else 1
    across = min(panels, 3)
    down = -(-panels // across)
    size = (3 * across if panels > 1 else 5, 2.6 * down + 0.5)
    figure, grid = pyplot.subplots(down, across, figsize=size, squeeze=False)
    axes = grid.flat[:panels]
    for unused in grid.flat[panels:]:
        unused.remove()
    if args.over == "length":
        over_length(axes[0], rows, tasks, settings)
    else:
        for axis, task in zip(axes, tasks, strict=True):
            over_forwards(axis, rows, task, settings)
    for axis in axes:
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy, %" if args.over == "forwards" else "area under the frontier, %")
    columns = 4 if panels > 1 else 3
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=columns, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.1 if panels > 1 else 0.14, 1, 1))
    figure.savefig(args.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
