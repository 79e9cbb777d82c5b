"""Prints the tables of a study as Markdown: every setting, effects of factors, and comparisons on evaluation seeds.

python -m research.tables research/best-lfpo.yaml --only factorial,dtm
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from lfpo.compare.statistics import (
    Scores,
    accuracy_for,
    best_points,
    bootstrap,
    frontier_area,
    paired,
    probability_of_improvement,
)
from lfpo.eval.estimates import students_interval
from research.study import Store, cell_key, cells_of

Row = dict[str, Any]


def area(row: Row, start: float = 1.0) -> float:
    """Area under the frontier in %, from `start` forwards on."""
    return 100 * frontier_area(row["frontier"], row["forwards"], start)


def finished(study: Row, path: Path, stage: str) -> dict[tuple[str, str], dict[int, Row]]:
    """(task, setting) -> seed -> row of the finished cells of a stage."""
    done, found = Store(path, study.get("also")).read(), dict[tuple[str, str], dict[int, Row]]()
    for cell in cells_of(study, stage):
        if (row := done.get(cell_key(cell, study))) is not None:
            found.setdefault((cell["task"], cell["setting"]), {})[cell["seed"]] = row
    return found


def settings_table(study: Row, rows: dict[tuple[str, str], dict[int, Row]], task: str) -> list[str]:
    """One line a setting, by mean area; a graded reward by seed as the last column. Without thresholds, accuracy
    (forwards) by seed."""
    mine = {setting: list(by_seed.values()) for (of, setting), by_seed in rows.items() if of == task}
    if not study["thresholds"]:
        lines = ["| setting | mean | by seed |", "| --- | ---: | --- |"]
        for setting, cells in mine.items():
            points = [(100 * c["frontier"][0]["accuracy"], c["frontier"][0]["nfe"]) for c in cells]
            each = ", ".join(f"{accuracy:.1f} ({nfe:.1f})" for accuracy, nfe in points)
            lines.append(f"| {setting} | {mean([accuracy for accuracy, _ in points]):.1f} | {each} |")
        return lines
    columns = ["seeds", "area", "by seed", "from 2", "threshold 0.9", "TFLOP"]
    columns += ["reward"] if any("reward" in c for cells in mine.values() for c in cells) else []
    lines = [" | ".join(["| setting", *columns]) + " |", "| --- |" + " ---: |" * len(columns)]
    for setting, cells in sorted(mine.items(), key=lambda item: -mean([area(c) for c in item[1]])):
        at = [next(p for p in c["frontier"] if p["threshold"] == 0.9) for c in cells]
        accuracy, nfe = mean([100 * p["accuracy"] for p in at]), mean([p["nfe"] for p in at])
        each = ", ".join(f"{area(c):.1f}" for c in cells)
        rewards = [f"{100 * c['reward']:.1f}" for c in cells if "reward" in c]
        lines.append(
            f"| {setting} | {len(cells)} | {mean([area(c) for c in cells]):.1f} | {each} "
            f"| {mean([area(c, 2.0) for c in cells]):.1f} | {accuracy:.1f} in {nfe:.2f} "
            f"| {mean([c['flops'] for c in cells]) / 1e12:.1f} |" + (f" {', '.join(rewards)} |" if rewards else "")
        )
    return lines


def effects_table(study: Row, rows: dict[tuple[str, str], dict[int, Row]], stage: str, task: str) -> list[str]:
    """Main effects of factors of two levels and their interactions in pairs, in points of area: first minus second
    level; half the difference of an effect between the levels of another. Student's t interval over complete seeds."""
    factors = {name: levels for name, levels in study["stages"][stage].get("factors", {}).items() if len(levels) == 2}
    if not factors:
        return []
    complete = [
        seed
        for seed in study["stages"][stage]["seeds"]
        if all(seed in by_seed for (of, _), by_seed in rows.items() if of == task)
        and len([1 for of, _ in rows if of == task]) == 2 ** len(factors)
    ]
    if not complete:
        return []
    names = list(factors)
    sign: dict[str, tuple[int, ...]] = {}
    settings = [setting for of, setting in rows if of == task]
    for setting, levels in zip(settings, itertools.product((1, -1), repeat=len(names)), strict=True):
        sign[setting] = levels
    lines = [f"| effect ({len(complete)} seeds) | points of area |", "| --- | ---: |"]
    for chosen in [*((i,) for i in range(len(names))), *itertools.combinations(range(len(names)), 2)]:
        by_seed = []
        for seed in complete:
            total = 0.0
            for setting, levels in sign.items():
                product = 1
                for i in chosen:
                    product *= levels[i]
                total += product * area(rows[task, setting][seed])
            by_seed.append(total / (len(sign) / 2))
        found = students_interval(by_seed)
        name = " x ".join(names[i] for i in chosen)
        lines.append(f"| {name} | {found.mean:+.1f} ({found.low:.1f} to {found.high:.1f}) |")
    return lines


def parts_table(rows: dict[tuple[str, str], dict[int, Row]], tasks: Sequence[str]) -> list[str]:
    """Of settings whose names have equally many parts ("dtm, 16 x 4"): each level of a part minus its first level, in
    points of area. Of each seed that has all of these cells, the mean over tasks and the levels of the other parts;
    Student's t interval over seeds."""
    settings = [tuple(setting.split(", ")) for setting in dict.fromkeys(setting for _, setting in rows)]
    if len({len(parts) for parts in settings}) != 1 or len(settings[0]) == 1:
        return []
    lines = [
        "| level | against | " + " | ".join(tasks) + " | all | seeds |",
        "| --- | --- |" + " ---: |" * (len(tasks) + 2),
    ]
    for part in range(len(settings[0])):
        first, *others = dict.fromkeys(parts[part] for parts in settings)
        for level in others:
            pairs = [(parts, (*parts[:part], first, *parts[part + 1 :])) for parts in settings if parts[part] == level]
            names = [(", ".join(own), ", ".join(base)) for own, base in pairs]
            cells = [rows.get((task, name), {}) for task in tasks for pair in names for name in pair]
            if seeds := sorted(set.intersection(*map(set, cells))):
                differences = {
                    task: [mean([area(rows[task, a][s]) - area(rows[task, b][s]) for a, b in names]) for s in seeds]
                    for task in tasks
                }
                of_all = [mean(by_task) for by_task in zip(*differences.values(), strict=True)]
                found = [students_interval(by_seed) for by_seed in (*differences.values(), of_all)]
                shown = " | ".join(f"{e.mean:+.1f} ({e.low:.1f} to {e.high:.1f})" for e in found)
                lines.append(f"| {level} | {first} | {shown} | {len(seeds)} |")
    return lines


def against_table(rows: dict[tuple[str, str], dict[int, Row]], first: str, tasks: Sequence[str]) -> list[str]:
    """One setting against each other one, per task and over all tasks that both have."""
    lines = ["| against | task | P | difference | seeds |", "| --- | --- | ---: | ---: | ---: |"]
    for other in dict.fromkeys(setting for _, setting in rows if setting != first):
        shared = [t for t in tasks if (t, first) in rows and (t, other) in rows]
        for where in [*([t] for t in shared), *([shared] if len(shared) > 1 else [])]:
            pairs = [sorted(set(rows[t, first]) & set(rows[t, other])) for t in where]
            a = [[area(rows[t, first][s]) for s in seeds] for t, seeds in zip(where, pairs, strict=True)]
            b = [[area(rows[t, other][s]) for s in seeds] for t, seeds in zip(where, pairs, strict=True)]
            if not all(a):
                continue
            p, difference = bootstrap(probability_of_improvement, a, b), paired(a, b)
            lines.append(
                f"| {other} | {', '.join(where)} | {p.mean:.2f} ({p.low:.2f} to {p.high:.2f}) "
                f"| {difference.mean:+.1f} ({difference.low:.1f} to {difference.high:.1f}) | {sum(map(len, a))} |"
            )
    return lines


def iqm(scores: Scores) -> float:
    """The interquartile mean of all runs: a quarter of the values, rounded down, is cut from either end."""
    ordered = sorted(x for task in scores for x in task)
    cut = len(ordered) // 4
    return mean(ordered[cut : len(ordered) - cut])


def iqm_table(rows: dict[tuple[str, str], dict[int, Row]], tasks: Sequence[str]) -> list[str]:
    """Interquartile means with bootstrap intervals, a line a setting and a column a task."""
    lines = ["| setting | " + " | ".join(tasks) + " |", "| --- |" + " ---: |" * len(tasks)]
    for setting in dict.fromkeys(setting for _, setting in rows):
        cells = []
        for task in tasks:
            scores = [area(row) for row in rows.get((task, setting), {}).values()]
            if not scores:
                cells.append("")
            else:
                found = bootstrap(iqm, [scores])
                cells.append(f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f}; {len(scores)})")
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return lines


def level_table(rows: dict[tuple[str, str], dict[int, Row]], of: str, tasks: Sequence[str]) -> list[str]:
    """What it costs to reach another setting's level: medians over the seeds that reach it, and their number.

    TFLOP: of training, up to the first evaluation whose accuracy at threshold 0.9 is at least the mean over `of`'s
    seeds of their best one. Forwards: of decoding after training, read off the frontier, for the mean over `of`'s seeds
    of their best accuracy. Both levels stand behind the task.
    """
    lines = [f"| task | setting | TFLOP to {of}'s level | forwards to {of}'s accuracy |", "| --- | --- | ---: | ---: |"]
    for task in tasks:
        level = mean([max(p["accuracy"] for p in row["curve"]) for row in rows[task, of].values()])
        accuracy = mean([max(p["accuracy"] for p in row["frontier"]) for row in rows[task, of].values()])
        for setting, by_seed in ((s, b) for (t, s), b in rows.items() if t == task and s != "base"):
            reached = [[p["flops"] / 1e12 for p in row["curve"] if p["accuracy"] >= level] for row in by_seed.values()]
            bought = [forwards_for(row["frontier"], accuracy) for row in by_seed.values()]
            costs = [[min(found) for found in reached if found], [found for found in bought if found is not None]]
            cells = [f"{statistics.median(c):.2f} ({len(c)} of {len(by_seed)})" if c else "never" for c in costs]
            lines.append(f"| {task} ({level:.3f}, {accuracy:.3f}) | {setting} | {' | '.join(cells)} |")
    return lines


def few_forwards_table(
    rows: dict[tuple[str, str], dict[int, Row]], first: str, tasks: Sequence[str], forwards: float
) -> list[str]:
    """Accuracy in % that `forwards` forwards a completion buy, 0 below the cheapest point of a frontier, and `first`
    minus each other setting in pairs of a seed."""
    lines = [f"| at {forwards:g} forwards | {' | '.join(tasks)} |", "| --- |" + " ---: |" * len(tasks)]
    bought = {
        key: {seed: 100 * (accuracy_for(row["frontier"], forwards) or 0.0) for seed, row in by_seed.items()}
        for key, by_seed in rows.items()
    }
    for setting in dict.fromkeys(setting for _, setting in rows):
        cells = []
        for task in tasks:
            scores, reference = bought.get((task, setting), {}), bought.get((task, first), {})
            cells.append(beside(scores, reference if setting != first else {}))
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return lines


def beside(scores: dict[int, float], reference: dict[int, float]) -> str:
    """The mean of a setting's values by seed, and the reference minus it in pairs of a seed."""
    cell = f"{mean(list(scores.values())):.1f}" if scores else ""
    if seeds := sorted(set(scores) & set(reference)):
        difference = paired([[reference[s] for s in seeds]], [[scores[s] for s in seeds]])
        cell += f" ({difference.mean:+.1f}, {difference.low:.1f} to {difference.high:.1f})"
    return cell


def worst_dip(row: Row) -> float:
    """The best accuracy of a cell's curve minus the lowest after it, in points."""
    accuracies = [100 * point["accuracy"] for point in row["curve"]]
    best = max(accuracies)
    return best - min(accuracies[accuracies.index(best) :])


def course_table(rows: dict[tuple[str, str], dict[int, Row]], first: str, task: str) -> list[str]:
    """Where long training ends, of cells with pass@k: accuracy at threshold 0.9, its worst dip on the way, pass@k, and
    the entropy of the last rollouts in hundredths of a nat a token.

    Means over seeds, and `first` minus each other setting in pairs of a seed.
    """
    columns: dict[str, Callable[[Row], float]] = {
        "accuracy": lambda row: next(100 * p["accuracy"] for p in row["frontier"] if p["threshold"] == 0.9),
        "worst dip": worst_dip,
        "pass@k": lambda row: 100 * row["pass_at_k"],
        "entropy": lambda row: 100 * row["entropy"],
    }
    lines = [f"| {task} | seeds | {' | '.join(columns)} |", "| --- | ---: |" + " ---: |" * len(columns)]
    mine = {
        setting: {seed: row for seed, row in by_seed.items() if "pass_at_k" in row}
        for (of, setting), by_seed in rows.items()
        if of == task and setting != "base"
    }
    for setting, by_seed in mine.items():
        both = by_seed, mine.get(first, {}) if setting != first else {}
        cells = [beside(*({s: value(row) for s, row in c.items()} for c in both)) for value in columns.values()]
        lines.append(f"| {setting} | {len(by_seed)} | {' | '.join(cells)} |")
    return lines


def samples_table(rows: dict[tuple[str, str], dict[int, Row]], first: str, task: str) -> list[str]:
    """Of cells with samples drawn as rollouts are: pass@k in %, and different right completions a problem, means over
    seeds, and `first` minus each other setting in pairs of a seed."""
    mine = {s: {seed: r for seed, r in by.items() if "pass" in r} for (of, s), by in rows.items() if of == task}
    mine = {setting: by_seed for setting, by_seed in mine.items() if by_seed}
    if not mine:
        return []
    ks = list(next(iter(next(iter(mine.values())).values()))["pass"])
    lines = [f"| {task} | seeds | {' | '.join(f'pass@{k}' for k in ks)} | different right ones |"]
    lines.append("| --- | ---: |" + " ---: |" * (len(ks) + 1))
    for setting, by_seed in mine.items():
        both = by_seed, mine.get(first, {}) if setting != first else {}
        cells = [beside(*({s: 100 * row["pass"][k] for s, row in c.items()} for c in both)) for k in ks]
        cells.append(beside(*({s: row["distinct"] for s, row in c.items()} for c in both)))
        lines.append(f"| {setting} | {len(by_seed)} | {' | '.join(cells)} |")
    return lines


def forwards_for(points: Sequence[Row], accuracy: float) -> float | None:
    """The forwards a completion that buy an accuracy, read off the frontier as its area is; None if none do."""
    best = best_points(points)
    if best[-1][1] < accuracy:
        return None
    if best[0][1] >= accuracy:
        return best[0][0]
    for (before, low), (after, high) in itertools.pairwise(best):
        if low < accuracy <= high:
            return before * (after / before) ** ((accuracy - low) / (high - low))
    return None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--only", default="", help="stages, separated by commas")
    parser.add_argument("--first", default="", help="setting that the others of a stage are compared with")
    parser.add_argument("--level", default="", help="setting whose level the others' costs are counted to")
    parser.add_argument("--forwards", type=float, nargs="*", default=[], help="accuracy at so many, beside --first's")
    args = parser.parse_args()
    study = yaml.safe_load(args.study.read_text())
    for stage in args.only.split(",") if args.only else study["stages"]:
        rows = finished(study, args.study.with_suffix(".jsonl"), stage)
        tasks = study["stages"][stage]["tasks"]
        print(f"## {stage}\n")
        for task in tasks:
            if any(of == task for of, _ in rows):
                effects = effects_table(study, rows, stage, task)
                print("\n".join([f"### {task}", "", *settings_table(study, rows, task), "", *effects, ""]))
        if parts := parts_table(rows, tasks):
            print("\n".join([*parts, ""]))
        if args.first:
            print("\n".join([*iqm_table(rows, tasks), "", *against_table(rows, args.first, tasks), ""]))
            print("\n".join(line for task in tasks if (line := "\n".join(samples_table(rows, args.first, task)))))
            if any("pass_at_k" in row for by_seed in rows.values() for row in by_seed.values()):
                print("\n".join(line for task in tasks for line in [*course_table(rows, args.first, task), ""]))
        for forwards in args.forwards:
            print("\n".join([*few_forwards_table(rows, args.first, tasks, forwards), ""]))
        if args.level:
            print("\n".join([*level_table(rows, args.level, tasks), ""]))


if __name__ == "__main__":
    main()
