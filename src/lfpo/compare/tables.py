"""Tables of a comparison, as data, as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.compare.results import Results, accuracy, average, quantity, reach
from lfpo.eval.estimates import Estimate


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


def accuracy_table(results: Results, labels: Sequence[str], sampler: str, title: str) -> Table:
    """Accuracy per task and on average, with the improvement over the base in parentheses (the paper's Tables 1, 2)."""
    recipes = results.config.recipes
    columns = [_accuracy_column(results, labels, recipe, sampler) for recipe in recipes]
    base = [b["eval"][sampler]["accuracy"] for b in results.bases.values()]
    header = ["objective", *recipes]
    if len(recipes) > 1:
        means = [average(results, label, sampler) for label in labels]
        columns.append([(e.mean, f"{100 * e.mean:.1f}", _interval(e, 1, 100)) for e in means])
        base.append(sum(base) / len(base))
        header.append("average")
    rows = [[Entry("base"), *(Entry(f"{100 * b:.1f}") for b in base)], *_ranked_rows(labels, columns)]
    return Table(title, header, rows, f"Accuracy in %, {_protocol(results)}; best bold, second underlined.")


def steps_table(results: Results, labels: Sequence[str], recipe: str, sampler: str) -> Table:
    """Steps, NFE, accuracy and seconds a problem at one sampler, with the change against the base (Table 3)."""
    base = results.bases[recipe]["eval"][sampler]
    columns = [_accuracy_column(results, labels, recipe, sampler)]
    first = [Entry("base"), Entry(f"{100 * base['accuracy']:.1f}")]
    for name in ("steps", "nfe"):
        found = [quantity(results, recipe, label, sampler, name) for label in labels]
        columns.append([(-e.mean, f"{e.mean:.2f} ({100 * change:+.0f} %)", _interval(e, 2)) for e, change in found])
        first.append(Entry(f"{sum(base[name]) / len(base[name]):.2f}"))
    cells = [results.cells[recipe, label] for label in labels]
    seconds = [sum(c["eval"][sampler]["seconds"] for c in seeds) / len(seeds) for seeds in cells]
    columns.append([(None, f"{1000 * x:.1f} ({100 * (x / base['seconds'] - 1):+.0f} %)", "") for x in seconds])
    first.append(Entry(f"{1000 * base['seconds']:.1f}"))
    return Table(
        f"Inference on {recipe}, sampler `{sampler}`",
        ["objective", "accuracy", "scheduled steps", "NFE", "ms a problem"],
        [first, *_ranked_rows(labels, columns)],
        f"{_protocol(results)}; change against the base in parentheses. "
        "Other cells ran at the same time, so times are only indicative.",
    )


def reach_table(results: Results, recipe: str, sampler: str) -> Table | None:
    """Cost of reaching the best level of the target objective, in time and in FLOPs. None without a target."""
    by_time = reach(results, recipe, "seconds", sampler)
    by_flops = reach(results, recipe, "flops", sampler)
    if not by_time:
        return None
    rows = [
        [Entry(label), *_cost_and_ratio(by_time[label], 1.0), *_cost_and_ratio(by_flops[label], 1e12)]
        for label in by_time
    ]
    level = next(iter(by_time.values()))["level"]
    target = results.config.target
    return Table(
        f"Reaching the level of {target} on {recipe}",
        ["objective", "seconds", "time ratio", "TFLOPs", "FLOP ratio"],
        rows,
        f"Level: {100 * level:.1f} % ({sampler}), the best mean over seeds on {target}'s curve, a maximum of noisy "
        f"means over {results.config.curve_problems} problems. Costs are means over the seeds that reach it. Ratio: "
        f"{target}'s cost over the objective's, paired by seed, with 95 % t-interval, only where all seeds reach the "
        "level. Other cells ran at the same time, so times are only indicative.",
    )


def _cost_and_ratio(reached: dict[str, Any], unit: float) -> list[Entry]:
    """Two cells from one objective's entry of `reach`: mean cost, and the target's cost over it."""
    costs = [c for c in reached["costs"] if c is not None]
    seeds = len(reached["costs"])
    cost = Entry(
        f"{sum(costs) / len(costs) / unit:.1f}" if costs else "never",
        f"{len(costs)} of {seeds} seeds" if len(costs) < seeds else "",
    )
    ratio = reached["ratio"]
    if ratio is None:
        return [cost, Entry("-")]
    return [cost, Entry(f"{ratio.mean:.2f}", "" if math.isnan(ratio.low) else _interval(ratio, 1))]


def gradient_table(results: Results, recipe: str) -> Table:
    """Noise of the gradient from the objective's own random choices, on fixed rollouts."""
    rows = [
        [
            Entry(g["label"]),
            Entry("no signal" if g["noise"] is None else f"{g['noise']:.3f}"),
            Entry(f"{g['flops'] / 1e12:.4f}"),
            Entry("-" if g["noise"] is None else f"{g['noise'] * g['flops'] / 1e12:.4f}"),
        ]
        for g in results.gradients[recipe]
    ]
    return Table(
        f"Gradient noise on {recipe}",
        ["objective", "noise", "TFLOPs a gradient", "noise x TFLOPs"],
        rows,
        "noise: E|g - E g|^2 / |E g|^2 over the objective's own draws (masks, timesteps), rollouts of the base fixed; "
        "the last column is what counts for a given budget, lower is better.",
    )


def _accuracy_column(results: Results, labels: Sequence[str], recipe: str, sampler: str) -> list[Scored]:
    column: list[Scored] = []
    for label in labels:
        value, gain = accuracy(results, recipe, label, sampler)
        column.append((value.mean, f"{100 * value.mean:.1f} ({100 * gain.mean:+.1f})", _interval(value, 1, 100)))
    return column


def _interval(estimate: Estimate, digits: int, scale: float = 1.0) -> str:
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


def _protocol(results: Results) -> str:
    config = results.config
    n = {len(next(iter(b["eval"].values()))["correct"]) for b in results.bases.values()}
    problems = " or ".join(str(x) for x in sorted(n))
    return (
        f"{config.seeds} seeds on {problems} held-out problems, 95 % bootstrap intervals over both (with so few seeds "
        f"they are somewhat narrow), learning rates by accuracy ({config.sampler}) on {config.validation} "
        "validation problems"
    )


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
