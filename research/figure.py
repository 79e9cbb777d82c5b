"""Draws accuracy over forwards of a stage's settings, one panel a task: means over seeds, a point a threshold.

python -m research.figure research/best-lfpo.yaml --stage evaluation --output docs/images/comparison.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import yaml

from lfpo.report.charts import COLOURS
from research.study import cells_of
from research.tables import finished, mean

matplotlib.use("Agg")


def main() -> None:
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--stage", default="evaluation")
    parser.add_argument("--base", default="base-evaluation", help="the stage of the untrained model")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    study, results = yaml.safe_load(args.study.read_text()), args.study.with_suffix(".jsonl")
    rows = finished(study, results, args.base) | finished(study, results, args.stage)
    tasks = [task for task in study["stages"][args.stage]["tasks"] if any(of == task and s != "base" for of, s in rows)]
    settings = list(dict.fromkeys(["base", *(cell["setting"] for cell in cells_of(study, args.stage))]))
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(3.4 * len(tasks), 3.2), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for number, setting in enumerate(settings):
            cells = list(rows.get((task, setting), {}).values())
            if not cells:
                continue
            points = list(zip(*(cell["frontier"] for cell in cells), strict=True))
            forwards = [mean([p["nfe"] for p in at]) for at in points]
            accuracy = [100 * mean([p["accuracy"] for p in at]) for at in points]
            style = (
                {"color": "0.5", "linestyle": ":"}
                if setting == "base"
                else {"color": COLOURS[(number - 1) % len(COLOURS)]}
            )
            axis.plot(forwards, accuracy, marker=".", label=setting, **style)
        axis.set(title=task, xlabel="forwards", xscale="log", xticks=(1, 2, 4, 8, 16), xticklabels=(1, 2, 4, 8, 16))
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("accuracy, %")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=6, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(args.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
