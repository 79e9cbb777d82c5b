"""The benchmarks' plots: a bar for each case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def speedup_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed relative to the first mode of each group, with the accuracy beside each bar where there is one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = list(dict.fromkeys(row["group"] for row in rows))
    members = [[r for r in rows if r["group"] == g] for g in groups]
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "lfpo"}):
        figure, panels = plt.subplots(
            len(groups),
            1,
            figsize=(8, 0.5 + 0.28 * len(rows) + 0.6 * len(groups)),
            height_ratios=[len(m) + 1 for m in members],
            squeeze=False,
        )
        for axes, group, own in zip(panels[:, 0], groups, members, strict=True):
            place = range(len(own))
            axes.barh(place, [r["speedup"] for r in own], color="#2b6cb0", height=0.7)
            axes.set_yticks(place, [r["mode"] for r in own])
            axes.invert_yaxis()
            axes.set_title(group, loc="left", fontsize=9, fontweight="bold")
            for i, row in enumerate(own):
                text = f"{row['speedup']:.1f}x, same tokens {100 * row['same']:.0f} %"
                if row["accuracy"] is not None:
                    text += f", accuracy {100 * row['accuracy']:.0f} %"
                axes.annotate(text, (row["speedup"], i), (4, 0), textcoords="offset points", va="center", fontsize=8)
            axes.set_xlim(0, 1.9 * max(r["speedup"] for r in own))
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="x", alpha=0.25)
            axes.set_axisbelow(True)
        panels[-1, 0].set_xlabel("speed against the first mode of each group")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def update_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Peak memory and time of each case, a pair of panels for each group; what is held at rest is darker."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = list(dict.fromkeys(row["group"] for row in rows))
    members = [[r for r in rows if r["group"] == g] for g in groups]
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "lfpo"}):
        figure, panels = plt.subplots(
            len(groups),
            2,
            figsize=(10, 0.5 + 0.3 * len(rows) + 0.7 * len(groups)),
            height_ratios=[len(m) + 1 for m in members],
            squeeze=False,
        )
        for (left, right), group, own in zip(panels, groups, members, strict=True):
            peaks = [(r["peak_memory"] or 0) / 2**20 for r in own]
            _bars(left, own, peaks, [f"{p:,.0f} MiB" if p else "not known" for p in peaks])
            left.barh(range(len(own)), [(r.get("at_rest") or 0) / 2**20 for r in own], color="#1a365d", height=0.7)
            _bars(right, own, [r["seconds"] for r in own], [f"{r['seconds']:.2f} s" for r in own])
            right.set_yticks([])
            left.set_title(f"{group}: peak memory", loc="left", fontsize=9, fontweight="bold")
            right.set_title("time", loc="left", fontsize=9, fontweight="bold")
            if any(r.get("at_rest") for r in own):
                left.set_title("dark: held at rest", loc="right", fontsize=8)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _bars(axes: Any, rows: Sequence[dict[str, Any]], values: Sequence[float], texts: Sequence[str]) -> None:
    place = range(len(rows))
    axes.barh(place, values, color="#63a4d8", height=0.7)
    axes.set_yticks(place, [r["case"] for r in rows])
    axes.invert_yaxis()
    for i, text in enumerate(texts):
        axes.annotate(text, (values[i], i), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, 1.3 * (max(values) or 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
