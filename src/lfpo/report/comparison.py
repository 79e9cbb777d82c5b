"""The page and the figure of a comparison, from the results.json that `lfpo compare` writes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.files import read_json
from lfpo.report.style import COLOURS, STYLES

KEYS = ("title", "summary", "table", "curves", "environment", "config")


def is_comparison(folder: Path) -> bool:
    """Whether `lfpo compare` wrote this folder."""
    return (folder / "results.json").exists()


def comparison_data(folder: Path) -> dict[str, Any]:
    """The data of a comparison's page. Raises UserError when results.json lacks what lfpo compare writes."""
    results = read_json(folder / "results.json")
    if missing := [key for key in KEYS if key not in results]:
        what = f"{folder / 'results.json'}: lacks {', '.join(missing)}"
        raise UserError(f"{what}; run `lfpo compare` again, which trains nothing twice")
    return {"kind": "comparison", "name": folder.resolve().name, **{key: results[key] for key in KEYS}}


def comparison_figure(data: dict[str, Any]) -> Any:
    """Accuracy over forwards a completion, one point a threshold, and over training FLOPs: means over seeds, with bands
    from the lowest to the highest seed. Black and dotted: the untrained model."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    lines = [curve for curve in data["curves"] if "learning" in curve]
    styles = itertools.product(STYLES, COLOURS)
    looks: list[Any] = [{"ls": style, "color": colour} for (style, colour), _ in zip(styles, lines, strict=False)]
    if base := next((curve for curve in data["curves"] if "learning" not in curve), None):
        lines, looks = [*lines, base], [*looks, {"ls": ":", "color": "#000000"}]
    for axis, key in zip(axes, ("frontier", "learning"), strict=True):
        for curve, look in zip(lines, looks, strict=True):
            if (at := curve.get(key)) is None:
                continue
            mean, low, high = ([100 * y for y in at[name]] for name in ("mean", "low", "high"))
            axis.plot(at["x"], mean, marker="o", ms=3, lw=1.5, label=curve["label"], **look)
            axis.fill_between(at["x"], low, high, color=look["color"], alpha=0.1, lw=0)
    axes[0].set_xscale("log", base=2)
    axes[0].xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes[0].set(xlabel="forwards a completion (NFE)", ylabel="held-out accuracy (%)", title="after training")
    axes[1].set(xlabel="TFLOPs of training", title="while training")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure
