"""Figures of a comparison: learning curves, frontiers, performance profiles, sensitivity to the rate, and length."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lfpo.base.files import read_json
from lfpo.eval.estimates import over_seeds
from lfpo.report.comparison import TERA, by_objective
from lfpo.report.simplex import draw_simplex
from lfpo.report.style import COLOURS

STRONG = 4  # objectives that stand out; the others are thin and grey
GREY = "#9a9a9a"

Groups = dict[str, list[dict[str, Any]]]


def comparison_figures(folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, figure) for each figure of a folder of `lfpo compare`. Those that need what its results lack are left out:
    results of earlier versions have no frontiers, trials and profiles."""
    results = read_json(folder / "results.json")
    settings = list(dict.fromkeys(c["recipe"] for c in results["cells"]))
    groups = {setting: by_objective(results, setting) for setting in settings}
    for setting in settings:
        name = setting.replace("/", "-").replace(" ", "-")
        sampler = results["cells"][0]["sampler"]
        yield f"convergence-{name}", convergence(groups[setting], sampler)
        if all("frontier" in c for cells in groups[setting].values() for c in cells):
            yield f"frontiers-{name}", frontiers(groups[setting], results["bases"].get(setting))
        if all("calibration" in c for cells in groups[setting].values() for c in cells):
            yield f"calibration-{name}", calibration(groups[setting], sampler)
        if trials := [t for t in results.get("trials", []) if t["setting"] == setting and t["knobs"] == "{}"]:
            yield f"rates-{name}", rates(trials)
    for arm, found in results.get("profiles", {}).items():
        yield f"profiles-{arm.replace(' ', '-')}", profiles(found)
    if results.get("arms"):
        yield "arms", arms(results["arms"])
    for name, members in families(groups).items():
        yield f"over-{name.replace(' ', '-')}", over(name.partition("-")[0], members, results.get("gradients", {}))
    yield "simplex", draw_simplex()


def standing_out(groups: Groups, score: Callable[[dict[str, Any]], float]) -> dict[str, str]:
    """Colours of the objectives that stand out: the first one, and those of the best mean score of their cells. An
    objective has the colour of its place, so that it keeps it in other figures."""
    first, *others = groups
    mean = {label: sum(map(score, cells)) / len(cells) for label, cells in groups.items()}
    best = sorted(others, key=lambda label: -mean[label])[: STRONG - 1]
    colours = dict(zip(groups, itertools.cycle(COLOURS), strict=False))
    return {label: colours[label] for label in (first, *best)}


def convergence(groups: Groups, sampler: str) -> Any:
    """Mean accuracy over seeds against seconds and against TFLOPs, with a band from the lowest to the highest seed for
    the objectives that stand out, and all names to the right. groups: cells by objective.
    """
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
    colours = standing_out(groups, lambda cell: cell["eval"][sampler]["accuracy"])
    ends: dict[str, float] = {}
    lowest = 100.0
    for axis, key, unit, text in ((axes[0], "seconds", 1.0, "training time (s)"), (axes[1], "flops", TERA, "TFLOPs")):
        for label, cells in groups.items():
            points = list(zip(*(c["curve"] for c in cells), strict=False))
            x = [sum(p[key] for p in at) / len(at) / unit for at in points]
            ys = [[100 * p[sampler] for p in at] for at in points]
            ends[label] = sum(ys[-1]) / len(ys[-1])
            _banded(axis, x, ys, colours.get(label))
            if label in colours:
                lowest = min(lowest, *(min(y) for y in ys))
        axis.set_xlabel(text)
    axes[0].set_ylabel(f"held-out accuracy, {sampler} (%)")
    axes[0].set_ylim(bottom=max(axes[0].get_ylim()[0], lowest - 4))  # cut to what stands out
    name_lines(axes[1], ends, colours)
    figure.tight_layout()
    return figure


def frontiers(groups: Groups, base: dict[str, Any] | None) -> Any:
    """Accuracy over forwards of greedy decoding, one point a threshold: means over seeds, with a band from the lowest
    to the highest seed for the objectives with the largest areas. Black and dotted: the untrained model."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator

    figure, axis = plt.subplots(figsize=(6.5, 3.8))
    colours, ends = standing_out(groups, lambda cell: cell["endpoints"]["frontier"]), dict[str, float]()
    for label, cells in groups.items():
        points = list(zip(*(c["frontier"] for c in cells), strict=True))
        ys = [[100 * p["accuracy"] for p in at] for at in points]
        _banded(axis, [sum(p["nfe"] for p in at) / len(at) for at in points], ys, colours.get(label), marker="o")
        ends[label] = sum(ys[-1]) / len(ys[-1])
    if base is not None and "frontier" in base:
        y = [100 * p["accuracy"] for p in base["frontier"]]
        axis.plot([p["nfe"] for p in base["frontier"]], y, "o:", ms=3, lw=1.2, color="#000000")
        ends["base"], colours = y[-1], {**colours, "base": "#000000"}
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.set(xlabel="forwards a completion (NFE)", ylabel="held-out accuracy (%)")
    name_lines(axis, ends, colours)
    figure.tight_layout()
    return figure


def arms(found: dict[str, list[dict[str, Any]]]) -> Any:
    """The area under the frontier of each objective in each arm, with 95 % intervals, dotted in the baseline; beside it
    the paired difference to the baseline, with Student's t interval. found: label -> its results by arm."""
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(one["arm"] for results in found.values() for one in results))
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 1.4 + 0.36 * len(names)), sharey=True)
    for i, (label, results) in enumerate(found.items()):
        colour = COLOURS[i] if i < len(COLOURS) else GREY
        for axis, key in zip(axes, ("area", "against"), strict=True):
            has = [one for one in results if one[key] is not None]
            y = [names.index(one["arm"]) + 0.22 * (i - (len(found) - 1) / 2) for one in has]
            mean, low, high = ([100 * one[key][k] for one in has] for k in ("mean", "low", "high"))
            axis.hlines(y, low, high, color=colour, lw=1.4)
            axis.plot(mean, y, "o", ms=4, color=colour, label=label)
        for one in results:
            if one["against"] is None:
                axes[0].axvline(100 * one["area"]["mean"], color=colour, lw=0.8, ls=":")
    axes[1].axvline(0, color="#000000", lw=0.8, ls=":")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("area under the frontier (%)")
    axes[1].set_xlabel("difference on equal seeds (points)")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(found), frameon=False)
    figure.tight_layout()
    return figure


def profiles(found: dict[str, Any]) -> Any:
    """Performance profiles: the share of runs, over all tasks of an arm, whose area under the frontier is above a
    level, with 95 % bands. found: `levels`, and label -> an estimate at each level."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.8))
    levels = [100 * level for level in found["levels"]]
    lines = {label: at for label, at in found.items() if label != "levels"}
    colours = [COLOURS[i] if i < len(COLOURS) else GREY for i in range(len(lines))]
    for i, ((label, at), colour) in enumerate(zip(lines.items(), colours, strict=True)):
        mean, low, high = ([100 * e[k] for e in at] for k in ("mean", "low", "high"))
        axis.plot(levels, mean, color=colour, lw=1.6)
        axis.fill_between(levels, low, high, color=colour, alpha=0.1, lw=0)
        # Where a line passes a height of its own, so that the names do not meet.
        height = 90 - 80 * (i + 0.5) / len(lines)
        place = next((n for n, share in enumerate(mean) if share <= height), len(levels) - 1)
        where: Any = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8, "weight": "bold"}
        where["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1}
        axis.annotate(label, (levels[place], height), color=colour, **where)
    axis.set(xlabel="area under the frontier (%)", ylabel="runs above (%)")
    figure.tight_layout()
    return figure


def rates(trials: list[dict[str, Any]]) -> Any:
    """Area under the frontier on validation problems over the learning rate: means over the tuning seeds, with a band
    from the lowest to the highest."""
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.8))
    labels = list(dict.fromkeys(t["objective"] for t in trials))
    colours = dict(zip(labels, COLOURS, strict=False))
    ends = {}
    for label in labels:
        own = sorted((t for t in trials if t["objective"] == label), key=lambda t: t["learning_rate"])
        ys = [[100 * score for score in t["scores"]] for t in own]
        _banded(axis, [t["learning_rate"] for t in own], ys, colours.get(label), marker="o")
        ends[label] = sum(ys[-1]) / len(ys[-1])
    axis.set_xscale("log")
    tried = sorted({t["learning_rate"] for t in trials})
    axis.set_xticks(tried, [f"{rate:g}" for rate in tried])
    axis.minorticks_off()
    axis.set(xlabel="learning rate", ylabel="area under the frontier (%)")
    name_lines(axis, ends, colours)
    figure.tight_layout()
    return figure


def families(groups: dict[str, Groups]) -> dict[str, dict[int, tuple[str, Groups]]]:
    """Arms whose names differ by the number at their end, such as "length 16" and "length 32": NAME-TASK -> number ->
    setting and its cells. Only where there are two numbers."""
    found: dict[str, dict[int, tuple[str, Groups]]] = {}
    for setting, cells in groups.items():
        if match := re.fullmatch(r"(.*) (\d+)/(.*)", setting):
            found.setdefault(f"{match[1]}-{match[3]}", {})[int(match[2])] = (setting, cells)
    return {name: dict(sorted(members.items())) for name, members in found.items() if len(members) > 1}


def over(name: str, members: dict[int, tuple[str, Groups]], gradients: dict[str, list[dict[str, Any]]]) -> Any:
    """Area under the frontier, with Student's t interval over seeds, over the number of a family of arms, and beside it
    gradient noise for its cost, where that was measured."""
    from matplotlib import pyplot as plt

    labels = list(dict.fromkeys(label for _, groups in members.values() for label in groups))
    colours, places = dict(zip(labels, COLOURS, strict=False)), {n: i for i, n in enumerate(members)}
    measured = any(setting in gradients for setting, _ in members.values())
    figure, axes = plt.subplots(1, 1 + measured, figsize=(9.5 if measured else 6.5, 3.8), squeeze=False)
    ends, noise_ends = dict[str, float](), dict[str, float]()
    for number, label in enumerate(labels):
        has = [(n, groups[label]) for n, (_, groups) in members.items() if groups.get(label)]
        at = [over_seeds([100 * c["endpoints"]["frontier"] for c in cells]) for _, cells in has]
        errors = [[e.mean - e.low for e in at], [e.high - e.mean for e in at]]
        line: Any = {"ms": 3, "lw": 1.4, "color": colours.get(label, GREY)}
        x = [places[n] + 0.05 * (number - (len(labels) - 1) / 2) for n, _ in has]  # so that intervals do not meet
        axes[0, 0].errorbar(x, [e.mean for e in at], yerr=errors, fmt="o-", capsize=2, **line)
        ends[label] = at[-1].mean
        rows = {n: row for n, (s, _) in members.items() for row in gradients.get(s, []) if row["label"] == label}
        noisy = [(n, row["noise"] * row["flops"] / TERA) for n, row in rows.items() if row["noise"] is not None]
        if noisy:
            axes[0, 1].plot([places[n] for n, _ in noisy], [y for _, y in noisy], "o-", **line)
            noise_ends[label] = noisy[-1][1]
    for axis in axes[0]:
        axis.set_xticks(list(places.values()), [str(n) for n in members])
        axis.set_xlabel(name)
    axes[0, 0].set_ylabel("area under the frontier (%)")
    name_lines(axes[0, 0], ends, colours)
    if measured:
        axes[0, 1].set_ylabel("gradient noise x TFLOPs")
        axes[0, 1].set_yscale("log")
        name_lines(axes[0, 1], noise_ends, colours)
    figure.tight_layout()
    return figure


def calibration(groups: Groups, sampler: str) -> Any:
    """Reliability diagrams of the predictions at masked positions, all seeds of an objective together: how often the
    most probable token becomes the final one, and how often that of a right completion, over its probability. Dotted:
    perfect calibration."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
    colours = standing_out(groups, lambda cell: cell["eval"][sampler]["accuracy"])
    for axis, column, text in ((axes[0], 2, "becomes the final token"), (axes[1], 3, "and the completion is right")):
        ends = {}
        for label, cells in groups.items():
            bins = [
                [sum(part) for part in zip(*at, strict=True)]
                for at in zip(*(c["calibration"] for c in cells), strict=True)
            ]
            filled = [one for one in bins if one[0]]
            y = [100 * one[column] / one[0] for one in filled]
            line = {"color": colours.get(label, GREY), "lw": 1.6 if label in colours else 0.8}
            axis.plot([100 * one[1] / one[0] for one in filled], y, "o-", ms=3, **line)
            ends[label] = y[-1]
        axis.plot([0, 100], [0, 100], ":", color="#000000", lw=0.8)
        axis.set(xlabel="probability of the most probable token (%)", title=text)
    axes[0].set_ylabel("share of masked positions (%)")
    name_lines(axes[1], ends, colours)
    figure.tight_layout()
    return figure


def _banded(axis: Any, x: list[float], ys: list[list[float]], colour: str | None, marker: str = "") -> None:
    """A line of means, with a band from lowest to highest; thin and grey without a colour."""
    means = [sum(y) / len(y) for y in ys]
    if colour is None:
        axis.plot(x, means, color=GREY, lw=0.8, alpha=0.6)
        return
    axis.plot(x, means, color=colour, lw=1.6, marker=marker, ms=3, zorder=3)
    axis.fill_between(x, [min(y) for y in ys], [max(y) for y in ys], color=colour, alpha=0.1, lw=0)


def name_lines(axis: Any, ends: dict[str, float], colours: dict[str, str]) -> None:
    """Write the names of lines to the right of an axis at about the height of their ends, without overlap; the names of
    lines that end below the axis have their last value."""
    low = axis.get_ylim()[0]
    to_axis = axis.transData + axis.transAxes.inverted()
    gap, y = 0.062, 1.1
    for label in sorted(ends, key=lambda name: -ends[name]):
        y = min(float(to_axis.transform((axis.get_xlim()[1], max(ends[label], low)))[1]), y - gap)
        axis.annotate(
            label if ends[label] >= low else f"{label}, below: {ends[label]:.0f}",
            (1.02, y),
            xycoords="axes fraction",
            fontsize=8,
            color=colours.get(label, "#666666"),
            weight="bold" if label in colours else "normal",
            va="center",
            annotation_clip=False,
        )
