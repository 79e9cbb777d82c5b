"""Tables of a comparison, once as data and rendered as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lfpo.compare.results import Results, accuracy, average, quantity, reach


@dataclass(frozen=True)
class Entry:
    """One cell of a table. rank: 1 is set bold, 2 underlined. note: set small after the text (interval, change)."""

    text: str
    note: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[Entry]]
    caption: str = ""


def accuracy_table(results: Results, labels: Sequence[str], sampler: str, title: str) -> Table:
    """Accuracy per task and on average, with the improvement over the base in parentheses (the paper's Tables 1, 2)."""
    recipes = results.config.recipes
    columns: list[list[tuple[float, str, str]]] = []
    for recipe in recipes:
        column = []
        for label in labels:
            value, gain = accuracy(results, recipe, label, sampler)
            text = f"{100 * value.mean:.1f} ({100 * gain.mean:+.1f})"
            column.append((value.mean, text, f"{100 * value.low:.1f} to {100 * value.high:.1f}"))
        columns.append(column)
    if len(recipes) > 1:
        means = [average(results, label, sampler) for label in labels]
        columns.append([(e.mean, f"{100 * e.mean:.1f}", f"{100 * e.low:.1f} to {100 * e.high:.1f}") for e in means])
    ranks = [_ranks([value for value, _, _ in column]) for column in columns]
    base = [b["eval"][sampler]["accuracy"] for b in results.bases.values()]
    base += [sum(base) / len(base)] if len(recipes) > 1 else []
    rows = [[Entry("base"), *(Entry(f"{100 * b:.1f}") for b in base)]]
    for i, label in enumerate(labels):
        entries = [Entry(c[i][1], c[i][2], r[i]) for c, r in zip(columns, ranks, strict=True)]
        rows.append([Entry(label), *entries])
    header = ["objective", *recipes, *(["average"] if len(recipes) > 1 else [])]
    return Table(title, header, rows, f"Accuracy in %, {_protocol(results)}; best bold, second underlined.")


def steps_table(results: Results, labels: Sequence[str], recipe: str, sampler: str) -> Table:
    """Steps, NFE, accuracy and seconds a problem at one sampler, with the change against the base (Table 3)."""
    base = results.bases[recipe]["eval"][sampler]
    n = len(base["correct"])
    rows = [
        [
            Entry("base"),
            Entry(f"{100 * base['accuracy']:.1f}"),
            Entry(f"{sum(base['steps']) / n:.2f}"),
            Entry(f"{sum(base['nfe']) / n:.2f}"),
            Entry(f"{1000 * base['seconds']:.1f}"),
        ]
    ]
    found = []
    for label in labels:
        value, gain = accuracy(results, recipe, label, sampler)
        steps, change = quantity(results, recipe, label, sampler, "steps")
        nfe, nfe_change = quantity(results, recipe, label, sampler, "nfe")
        cells = results.cells[recipe, label]
        seconds = sum(c["eval"][sampler]["seconds"] for c in cells) / len(cells)
        found.append((value, gain, steps, change, nfe, nfe_change, seconds))
    ranks = [
        _ranks([f[0].mean for f in found]),
        _ranks([-f[2].mean for f in found]),
        _ranks([-f[4].mean for f in found]),
    ]
    for i, label in enumerate(labels):
        value, gain, steps, change, nfe, nfe_change, seconds = found[i]
        rows.append(
            [
                Entry(label),
                Entry(
                    f"{100 * value.mean:.1f} ({100 * gain.mean:+.1f})",
                    f"{100 * value.low:.1f} to {100 * value.high:.1f}",
                    ranks[0][i],
                ),
                Entry(f"{steps.mean:.2f} ({100 * change:+.0f} %)", f"{steps.low:.2f} to {steps.high:.2f}", ranks[1][i]),
                Entry(f"{nfe.mean:.2f} ({100 * nfe_change:+.0f} %)", f"{nfe.low:.2f} to {nfe.high:.2f}", ranks[2][i]),
                Entry(f"{1000 * seconds:.1f} ({100 * (seconds / base['seconds'] - 1):+.0f} %)"),
            ]
        )
    return Table(
        f"Inference on {recipe}, sampler `{sampler}`",
        ["objective", "accuracy", "scheduled steps", "NFE", "ms a problem"],
        rows,
        f"{_protocol(results)}; change against the base in parentheses. "
        "Times were taken while other cells ran beside: indicative only.",
    )


def reach_table(results: Results, recipe: str, sampler: str) -> Table | None:
    """Cost of reaching the best level of the target objective, in time and in arithmetic."""
    by_time = reach(results, recipe, "seconds", sampler)
    by_flops = reach(results, recipe, "flops", sampler)
    if not by_time:
        return None
    rows = []
    for label in by_time:
        entries = [Entry(label)]
        for table, unit in ((by_time, 1.0), (by_flops, 1e12)):
            costs = [c for c in table[label]["costs"] if c is not None]
            text = f"{sum(costs) / len(costs) / unit:.1f}" if costs else "never"
            missing = len(table[label]["costs"]) - len(costs)
            entries.append(Entry(text, f"{len(costs)} of {len(table[label]['costs'])} seeds" if missing else ""))
            ratio = table[label]["ratio"]
            if ratio is None:
                entries.append(Entry("-"))
            else:
                interval = f"{ratio['low']:.1f} to {ratio['high']:.1f}" if ratio["low"] == ratio["low"] else ""
                entries.append(Entry(f"{ratio['mean']:.2f}", interval))
        rows.append(entries)
    level = next(iter(by_time.values()))["level"]
    target = results.config.target
    return Table(
        f"Reaching the level of {target} on {recipe}",
        ["objective", "seconds", f"{target} takes x as long", "TFLOPs", f"{target} takes x as many"],
        rows,
        f"Level: {100 * level:.1f} % ({sampler}), the best mean over seeds on {target}'s curve, a "
        f"maximum of noisy means over {results.config.curve_problems} problems. Costs are means over the seeds that "
        "get there; ratios are paired by seed, with 95 % t-intervals, and given only where all seeds get there. Times "
        "were taken while other cells ran beside.",
    )


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


def _ranks(values: Sequence[float]) -> list[int]:
    """1 for the best (equal ones too), 2 for the second best, 0 for the rest."""
    distinct = sorted({round(v, 6) for v in values}, reverse=True)
    return [distinct.index(round(v, 6)) + 1 if distinct.index(round(v, 6)) < 2 else 0 for v in values]


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
