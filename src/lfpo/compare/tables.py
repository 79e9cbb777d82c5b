"""Tables of a comparison, as data, as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.compare.endpoints import FROM_2, PRIMARY, accuracy_for, frontier_areas, rate_sensitivity
from lfpo.compare.grid import Trial
from lfpo.compare.results import Results, arm_results, pairs, reach, scores
from lfpo.compare.settings import knob_names
from lfpo.compare.statistics import bootstrap, iqm, paired, probability_of_improvement
from lfpo.eval.estimates import Estimate

ENDPOINTS = {PRIMARY: "frontier", FROM_2: FROM_2, "best": "best", "area": "area"}
ENDPOINTS |= {"flops": "equal FLOPs", "rollouts": "equal rollouts"}
FORWARDS = (1.5, 2, 3, 4, 6, 8)
ENDPOINTS_CAPTION = (
    "In %. Frontier: area under accuracy over forwards, thresholds swept; also without what fewer than 2 buy. Of the "
    "learning curve: its best, its area over FLOPs, and accuracy at equal FLOPs and at equal rollouts. Interquartile "
    "means over seeds; small print: 95 % intervals of a stratified bootstrap; best bold, second underlined. Collapsed: "
    "runs that end below their start."
)


@dataclass(frozen=True)
class Entry:
    """One cell of a table. rank: 1 is bold, 2 underlined. note: small print after the text (an interval)."""

    text: str
    note: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[Entry]]
    caption: str = ""


# Of one cell: what it is ranked by (None: not ranked), text, note.
Scored = tuple[float | None, str, str]


def endpoints_table(results: Results, setting: str) -> Table:
    """Every endpoint of every objective in one setting, with the untrained model above."""
    labels = list(results.cells[setting])
    columns = [[_estimate(results, setting, label, name) for label in labels] for name in ENDPOINTS]
    columns.append([_collapses(results, setting, label) for label in labels])
    columns.append([_flops(results, setting, label) for label in labels])
    rows = _ranked_rows(labels, columns)
    if base := results.bases.get(setting):
        at_start = base["eval"][results.config.curve_sampler]["accuracy"]
        known = {**frontier_areas(base), "best": at_start}
        first = [Entry(_percent(known[name]) if name in known else "") for name in ENDPOINTS]
        rows = [[Entry("base"), *first, Entry(""), Entry("")], *rows]
    note = results.config.arms[setting.partition("/")[0]].note
    return Table(
        f"Endpoints, {setting}",
        ["objective", *ENDPOINTS.values(), "collapsed", "TFLOPs"],
        rows,
        " ".join(filter(None, [note, ENDPOINTS_CAPTION])),
    )


def forwards_table(results: Results, setting: str) -> Table | None:
    """Accuracy at equal forwards: the untrained model, then the trained ones. None without a finished cell."""
    groups = {label: cells for label, cells in results.cells[setting].items() if cells}
    if not groups:
        return None
    columns = [[_accuracy_for(cells, nfe) for cells in groups.values()] for nfe in FORWARDS]
    rows = _ranked_rows(list(groups), columns)
    for row, cells in zip(rows, groups.values(), strict=True):
        row[0] = Entry(row[0].text, _fewer(len(cells), results.seeds(setting)))
    if base := results.bases.get(setting):
        rows.insert(0, [Entry("base"), *(Entry(_accuracy_for([base], nfe)[1]) for nfe in FORWARDS)])
    return Table(
        f"Accuracy for equal forwards, {setting}",
        ["objective", *(f"{nfe:g} forwards" for nfe in FORWARDS)],
        rows,
        "In %, read off the frontier of accuracy over forwards a completion, mean over seeds; - where a seed has no "
        "threshold that cheap. Best bold, second underlined.",
    )


def _accuracy_for(cells: Sequence[dict[str, Any]], nfe: float) -> Scored:
    found = [accuracy_for(cell["frontier"], nfe) for cell in cells]
    known = [accuracy for accuracy in found if accuracy is not None]
    if len(known) < len(found):
        return None, "-", ""
    mean = sum(known) / len(known)
    return mean, _percent(mean), ""


def against_table(results: Results, arm: str) -> Table | None:
    """The first objective against each other one over all tasks of an arm. None if it has no pair of finished cells."""
    config, settings = results.config, [s for s in results.cells if s.partition("/")[0] == arm]
    first, rows = config.first, []
    for label in config.arms[arm].objectives:
        a, b = pairs(results, settings, first, label)
        if label == first or not a:
            continue
        better = bootstrap(probability_of_improvement, a, b)
        (difference, seen), (later, _) = paired(a, b), paired(*pairs(results, settings, first, label, FROM_2))
        rows.append(
            [
                Entry(label),
                Entry(f"{better.mean:.2f}", _interval(better, 2)),
                Entry(f"{100 * difference.mean:+.1f}", _interval(difference, 1, 100)),
                Entry("-" if math.isnan(seen) else f"{100 * seen:.1f}"),
                Entry(f"{100 * later.mean:+.1f}", _interval(later, 1, 100)),
                Entry(str(sum(map(len, a)))),
            ]
        )
    if not rows:
        return None
    return Table(
        f"{first} against the others, {arm}",
        ["objective", f"P({first} better)", "difference", "detectable", f"difference {FROM_2}", "pairs"],
        rows,
        "Area under the frontier. P: probability that a run has the larger area, mean over tasks. Difference: mean "
        "over runs of equal task and seed, in points, with Student's t interval. Detectable: the true difference that "
        "so many pairs find with probability 0.8 (two-sided, 5 %).",
    )


def arms_table(results: Results, label: str) -> Table | None:
    """An objective in each arm against itself in the baseline. None where there is nothing to compare."""
    found, baseline = arm_results(results, label), results.config.baseline
    if all(one.against is None for one in found):
        return None
    rows = []
    for one in found:
        rows.append([Entry(one.arm), Entry(_percent(one.area.mean), _interval(one.area, 1, 100)), Entry(str(one.runs))])
        if one.against is None:
            rows[-1] += [Entry("")] * 3
            continue
        rows[-1] += [
            Entry(f"{100 * one.against.mean:+.1f}", _interval(one.against, 1, 100)),
            Entry("-" if one.detectable is None else f"{100 * one.detectable:.1f}"),
            Entry(str(one.pairs)),
        ]
    return Table(
        f"{label} in each arm, against {baseline}",
        ["arm", "frontier", "runs", "difference", "detectable", "pairs"],
        rows,
        "Frontier: area under accuracy over forwards in %, interquartile mean over runs. Difference: to the run of "
        f"{baseline} of equal task and seed, in points, mean with Student's t interval. Detectable: the true "
        "difference that so many pairs find with probability 0.8 (two-sided, 5 %).",
    )


def trials_table(results: Results, setting: str) -> Table | None:
    """All trials of a setting's tuning, and how sensitive each objective is to the rate. None if it was not tuned."""
    trials = [t for t in results.trials if t.setting == setting]
    if not trials:
        return None
    config, rows, widest = results.config, [], 0
    for label in dict.fromkeys(t.objective for t in trials):
        own = [t for t in trials if t.objective == label]
        best = max(own, key=lambda t: t.mean)
        rates = [t.mean for t in own if t.knobs == "{}"]
        entries = [Entry(_percent(t.mean), _trial_note(t, len(config.tuning_seeds)), int(t is best)) for t in own]
        widest = max(widest, len(entries))
        rows.append([Entry(label), Entry(f"{100 * rate_sensitivity(rates):.1f}"), *entries])
    rows = [row + [Entry("missing")] * (2 + widest - len(row)) for row in rows]
    return Table(
        f"All trials, {setting}",
        ["objective", "rate sensitivity", *(f"trial {i + 1}" for i in range(widest))],
        rows,
        f"Mean area under the frontier in % on {config.validation} validation problems, seeds "
        f"{', '.join(map(str, config.tuning_seeds))}; the chosen trial bold. Rate sensitivity: the best rate's mean "
        "minus the mean over all rates, in points.",
    )


def knobs_table(results: Results, label: str) -> Table | None:
    """Each knob that was tried for an objective against its own settings, over all settings that were tuned. None
    without a pair of finished trials."""
    trials = [t for t in results.trials if t.objective == label]
    plain = {(t.setting, t.learning_rate): t.scores for t in trials if t.knobs == "{}"}
    whole, rows = len(results.config.tuning_seeds), []
    for knobs in dict.fromkeys(t.knobs for t in trials if t.knobs != "{}"):
        found = [(t.scores, plain[t.setting, t.learning_rate]) for t in trials if t.knobs == knobs]
        both = [pair for pair in found if all(len(scores) == whole for scores in pair)]
        if not both:
            continue
        a, b = [x for x, _ in both], [y for _, y in both]
        difference, seen = paired(a, b)
        better = sum(sum(x) > sum(y) for x, y in both)
        rows.append(
            [
                Entry(", ".join(knob_names(knobs))),
                Entry(f"{100 * difference.mean:+.1f}", _interval(difference, 1, 100)),
                Entry("-" if math.isnan(seen) else f"{100 * seen:.1f}"),
                Entry(f"{better} of {len(both)}"),
                Entry(str(sum(map(len, a)))),
            ]
        )
    if not rows:
        return None
    return Table(
        f"Knobs of {label}, against {label} without",
        ["knob", "difference", "detectable", "settings with a larger mean", "pairs"],
        rows,
        "Area under the frontier on validation problems, over all arms and tasks that were tuned. Difference: over "
        "runs of equal setting, rate and seed, in points, with Student's t interval. Detectable: the true difference "
        "that so many pairs find with probability 0.8 (two-sided, 5 %).",
    )


def _trial_note(trial: Trial, seeds: int) -> str:
    knobs = "".join(f", {knob}" for knob in knob_names(trial.knobs))
    notes = [f"lr {trial.learning_rate:g}{knobs}", _fewer(len(trial.scores), seeds)]
    return ", ".join(filter(None, notes))


def reach_table(results: Results, setting: str) -> Table | None:
    """FLOPs to the best level of the target objective. None without a target."""
    found = reach(results, setting)
    if not found:
        return None
    rows = []
    for label, reached in found.items():
        costs = [c for c in reached["costs"] if c is not None]
        cost = f"{sum(costs) / len(costs) / 1e12:.2f}" if costs else "never"
        ratio = reached["ratio"]
        rows.append(
            [
                Entry(label),
                Entry(cost, f"{len(costs)} of {len(reached['costs'])} seeds"),
                Entry("-" if ratio is None else f"{ratio.mean:.2f}", "" if ratio is None else _interval(ratio, 2)),
            ]
        )
    target, level = results.config.target, next(iter(found.values()))["level"]
    return Table(
        f"Reaching the level of {target}, {setting}",
        ["objective", "TFLOPs", f"over {target}'s"],
        rows,
        f"Level: {_percent(level)} %, the mean over seeds of {target}'s best. FLOPs: mean over seeds that reach it. "
        f"Last column: over {target}'s, by seed, only where all seeds of both reach it.",
    )


def gradient_table(results: Results, setting: str) -> Table:
    """Noise of the gradient from the objective's own random choices, on fixed rollouts."""
    rows = [
        [
            Entry(g["label"]),
            Entry("no signal" if g["noise"] is None else f"{g['noise']:.3f}"),
            Entry(f"{g['flops'] / 1e12:.4f}"),
            Entry("-" if g["noise"] is None else f"{g['noise'] * g['flops'] / 1e12:.4f}"),
        ]
        for g in results.gradients[setting]
    ]
    return Table(
        f"Gradient noise, {setting}",
        ["objective", "noise", "TFLOPs a gradient", "noise x TFLOPs"],
        rows,
        "noise: E|g - E g|^2 / |E g|^2 over the objective's own draws (masks, timesteps), rollouts of the base fixed; "
        "the last column is what counts for a given budget, lower is better.",
    )


def _estimate(results: Results, setting: str, label: str, endpoint: str) -> Scored:
    found = scores(results, [setting], label, endpoint)
    if not found:
        return None, "missing", ""
    estimate = bootstrap(iqm, found)
    notes = [_interval(estimate, 1, 100), _fewer(len(found[0]), results.seeds(setting))]
    return estimate.mean, _percent(estimate.mean), ", ".join(filter(None, notes))


def _fewer(seeds: int, all_seeds: int) -> str:
    """A note on seeds that are missing."""
    return f"{seeds} of {all_seeds} seeds" if seeds < all_seeds else ""


def _collapses(results: Results, setting: str, label: str) -> Scored:
    found = [c["endpoints"]["collapsed"] for c in results.cells[setting][label]]
    return None, f"{sum(found):.0f} of {len(found)}", ""


def _flops(results: Results, setting: str, label: str) -> Scored:
    found = [c["flops"] for c in results.cells[setting][label]]
    return None, f"{sum(found) / len(found) / 1e12:.2f}" if found else "-", ""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _interval(estimate: Estimate, digits: int, scale: float = 1.0) -> str:
    if math.isnan(estimate.low):  # of a single difference
        return "one pair"
    return f"{scale * estimate.low:.{digits}f} to {scale * estimate.high:.{digits}f}"


def _ranked_rows(labels: Sequence[str], columns: Sequence[Sequence[Scored]]) -> list[list[Entry]]:
    """One row a label; the cells of each column are ranked."""
    ranks = [_ranks([score for score, _, _ in column]) for column in columns]
    return [
        [Entry(label), *(Entry(c[i][1], c[i][2], r[i]) for c, r in zip(columns, ranks, strict=True))]
        for i, label in enumerate(labels)
    ]


def _ranks(scores: Sequence[float | None]) -> list[int]:
    """1 for the best score (and equal ones), 2 for the second best, 0 for the rest and for None; all 0 where all are
    equal."""
    rounded = [None if score is None else round(score, 6) for score in scores]
    if len(set(rounded)) == 1 < len(rounded):
        return [0] * len(rounded)
    best = sorted({score for score in rounded if score is not None}, reverse=True)[:2]
    return [best.index(score) + 1 if score in best else 0 for score in rounded]


def markdown(table: Table) -> str:
    lines = [f"### {table.title}", ""]
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append("| --- |" + " ---: |" * (len(table.columns) - 1))
    for row in table.rows:
        lines.append("| " + " | ".join(_markdown(entry) for entry in row) + " |")
    return "\n".join([*lines, "", table.caption, ""])


def _markdown(entry: Entry) -> str:
    text = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}[entry.rank].format(entry.text)
    return f"{text} <sub>{entry.note}</sub>" if entry.note else text


def latex(table: Table) -> str:
    lines = ["\\begin{table}", "\\centering", f"\\caption{{{_tex(table.title)}. {_tex(table.caption)}}}"]
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", "\\toprule"]
    lines.append(" & ".join(_tex(c) for c in table.columns) + " \\\\")
    lines.append("\\midrule")
    lines += [" & ".join(_latex(entry) for entry in row) + " \\\\" for row in table.rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _latex(entry: Entry) -> str:
    text = {0: "{}", 1: "\\textbf{{{}}}", 2: "\\underline{{{}}}"}[entry.rank].format(_tex(entry.text))
    return f"{text} {{\\scriptsize {_tex(entry.note)}}}" if entry.note else text


def _tex(text: str) -> str:
    for plain, escaped in (("\\", "\\textbackslash{}"), ("%", "\\%"), ("_", "\\_"), ("&", "\\&"), ("#", "\\#")):
        text = text.replace(plain, escaped)
    return text.replace("^2", "\\textsuperscript{2}").replace("`", "")
