"""The benchmarks' plots: a bar for each case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def speedup_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed relative to the first mode of each group, with the accuracy beside each bar where there is one."""
    with _groups(rows, path, columns=1) as groups:
        for (axes,), group, own in groups:
            texts = [f"{r['speedup']:.1f}x, same tokens {100 * r['same']:.0f} %" for r in own]
            for i, row in enumerate(own):
                if row["accuracy"] is not None:
                    texts[i] += f", accuracy {100 * row['accuracy']:.0f} %"
            _bars(axes, [r["mode"] for r in own], [r["speedup"] for r in own], texts, room=1.9)
            axes.set_title(group, loc="left", fontsize=9, fontweight="bold")
        for (axes,), _, _ in groups[-1:]:
            axes.set_xlabel("speed against the first mode of each group")


def update_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Peak memory and time of each case, two panels a group; memory held between iterations is darker."""
    with _groups(rows, path, columns=2) as groups:
        for (left, right), group, own in groups:
            peaks = [(r["peak_memory"] or 0) / 2**20 for r in own]
            cases = [r["case"] for r in own]
            _bars(left, cases, peaks, [f"{p:,.0f} MiB" if p else "unknown" for p in peaks], room=1.3)
            left.barh(range(len(own)), [(r.get("at_rest") or 0) / 2**20 for r in own], color="#1a365d", height=0.7)
            seconds = [r["seconds"] for r in own]
            _bars(right, cases, seconds, [f"{s:.2f} s" for s in seconds], room=1.3)
            right.set_yticks([])
            left.set_title(f"{group}: peak memory", loc="left", fontsize=9, fontweight="bold")
            right.set_title("time", loc="left", fontsize=9, fontweight="bold")
            if any(r.get("at_rest") for r in own):
                left.set_title("dark: held at rest", loc="right", fontsize=8)


@contextlib.contextmanager
def _groups(
    rows: Sequence[dict[str, Any]], path: Path, *, columns: int
) -> Iterator[list[tuple[Any, str, list[dict[str, Any]]]]]:
    """Panels, name and rows of each group, from top to bottom; the figure is saved on exit, unless no row ran."""
    rows = [row for row in rows if "failed" not in row]
    if not rows:
        yield []
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["group"] for row in rows))
    members = [[r for r in rows if r["group"] == name] for name in names]
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "lfpo"}):
        figure, panels = plt.subplots(
            len(names),
            columns,
            figsize=(6 + 2 * columns, 0.5 + 0.3 * len(rows) + 0.6 * len(names)),
            height_ratios=[len(m) + 1 for m in members],
            squeeze=False,
        )
        yield list(zip(panels, names, members, strict=True))
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _bars(axes: Any, names: Sequence[str], values: Sequence[float], texts: Sequence[str], *, room: float) -> None:
    """Bars with a text at the end of each. room: length of the axis, in lengths of the longest bar."""
    place = range(len(names))
    axes.barh(place, values, color="#63a4d8", height=0.7)
    axes.set_yticks(place, names)
    axes.invert_yaxis()
    for i, text in enumerate(texts):
        axes.annotate(text, (values[i], i), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, room * (max(values) or 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
