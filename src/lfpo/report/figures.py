"""Figures of a run, as SVG text to put into a page."""

from __future__ import annotations

import io
from typing import Any

SERIES = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")


def learning_curve(metrics: list[dict[str, Any]]) -> str:
    """Training reward and held-out accuracy (with its 95 % interval) over iterations, and NFE below, as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # Fonts stay text and every colour of the frame is currentColor's stand-in, so the page can restyle for dark mode.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lfpo", "font.size": 10, "font.family": "sans-serif"}):
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(2, 1))
        trained = [m for m in metrics if "reward" in m]
        steps = [m["step"] for m in trained]
        if trained:
            top.plot(steps, [m["reward"] for m in trained], color="#718096", lw=1, label="training reward")
            bottom.plot(steps, [m["nfe"] for m in trained], color="#718096", lw=1, label="rollouts")
        names = sorted({k.split("/")[1] for m in metrics for k in m if k.startswith("eval/")})
        for name, colour in zip(names, SERIES, strict=False):
            measured = "accuracy" if any(f"eval/{name}/accuracy" in m for m in metrics) else "reward"
            rows = [m for m in metrics if f"eval/{name}/{measured}" in m]
            x = [m["step"] for m in rows]
            top.plot(
                x, [m[f"eval/{name}/{measured}"] for m in rows], "o-", ms=3, color=colour, label=f"held out, {name}"
            )
            if measured == "accuracy":
                low, high = ([m[f"eval/{name}/{side}"] for m in rows] for side in ("low", "high"))
                top.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
            bottom.plot(x, [m[f"eval/{name}/nfe"] for m in rows], "o-", ms=3, color=colour, label=name)
        top.set_ylabel("reward, accuracy")
        bottom.set_ylabel("forwards (NFE)")
        bottom.set_xlabel("iteration")
        bottom.set_ylim(bottom=0)
        top.set_ylim(bottom=0)
        top.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        bottom.xaxis.get_major_locator().set_params(integer=True)
        for axes in (top, bottom):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.patch.set_alpha(0)
        figure.patch.set_alpha(0)
        figure.align_ylabels()
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        plt.close(figure)
    svg = buffer.getvalue()
    return (
        svg[svg.index("<svg") :].replace("#000000", "currentColor").replace("stroke: #b0b0b0", "stroke: currentColor")
    )
