"""Draw dev/published.svg, the figure of dev/published.md: python dev/published.py

The numbers are those of the page, which names their sources. Needs matplotlib (extra `dev`).
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

# Method, who measured it, GSM8K (base, trained), Countdown (base, trained), whether the numbers are second-hand.
Pair = tuple[float, float]
ROWS: list[tuple[str, str, Pair, Pair | None, bool]] = [
    ("diffu-GRPO", "its paper", (76.7, 79.8), (19.5, 31.3), True),
    ("diffu-GRPO", "SPG's paper", (77.2, 80.6), (16.8, 30.9), False),
    ("diffu-GRPO", "DARE", (76.5, 83.7), (16.8, 10.7), False),
    ("diffu-GRPO", "LFPO's paper", (69.7, 74.3), None, False),
    ("UniGRPO", "SPG's paper", (77.2, 82.5), (16.8, 43.0), False),
    ("UniGRPO", "LFPO's paper", (69.7, 77.2), None, False),
    ("coupled-GRPO", "DARE", (76.5, 85.3), (16.8, 77.9), False),
    ("coupled-GRPO", "LFPO's paper", (69.7, 75.1), None, False),
    ("SPG", "its paper", (77.2, 86.1), (16.8, 70.7), False),
    ("SPG", "DARE", (76.5, 83.5), (16.8, 10.1), False),
    ("SPG", "LFPO's paper", (69.7, 76.2), None, False),
    ("LFPO", "LFPO's paper", (69.7, 79.6), None, False),
]
COLOURS = {"its paper": "#1b6ca8", "SPG's paper": "#7a4fa3", "DARE": "#c8553d", "LFPO's paper": "#2f8f5b"}


def main() -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "published", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
    for axis, title, column in ((axes[0], "GSM8K, %", 2), (axes[1], "Countdown, %", 3)):
        for y, row in enumerate(ROWS):
            pair = row[column]
            if pair is None:
                continue
            colour = COLOURS[row[1]]
            axis.plot(pair, (y, y), color=colour, linewidth=1.5, zorder=1)
            axis.plot(pair[0], y, "|", color=colour, markersize=9, markeredgewidth=1.5)
            axis.plot(pair[1], y, "o", color=colour, markerfacecolor="white" if row[4] else colour, markersize=6)
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.04)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        for y in range(1, len(ROWS)):
            if ROWS[y][0] != ROWS[y - 1][0]:
                axis.axhline(y - 0.5, color="#bbbbbb", linewidth=0.6)
    axes[0].set_yticks(range(len(ROWS)), [f"{method}, {source}" for method, source, *_ in ROWS])
    axes[0].set_xticks([70, 75, 80, 85])
    axes[0].invert_yaxis()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
