"""A run or a comparison as text, for a terminal or a log file: `lfpo report FOLDER --text`."""

import itertools

from rich.console import Console
from rich.table import Column, Table

from lfpo.base.progress import duration
from lfpo.base.terminal import Terminal, fitted
from lfpo.config.json import Json
from lfpo.report.charts import POLICY, reward_parts, shown
from lfpo.report.data import page_data
from lfpo.runs.directory import Run
from lfpo.runs.display import sparkline
from lfpo.runs.results import interval_text, measure_of, score_text


def print_report(run: Run, console: Console | None = None, data: Json | None = None) -> None:
    """Print the tables and the course of the metrics of a run or a comparison. data: of its page, if it is read
    already. Raises UserError as the page does."""
    console = console or Terminal()
    data = data or page_data(run)
    if data["kind"] == "comparison":
        made = data["table"]
        headers = [Column(name, justify="right" if i else "left") for i, name in enumerate(made["columns"])]
        table = Table(*headers, title=data["title"], caption=made["caption"], title_justify="left")
        for row in made["rows"]:
            table.add_row(*row)
        console.print(fitted(table, console))
        return

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    say(f"{data['name']}: {data['title']}")
    pace = "" if data["rate"] is None else f", {data['rate']:g} s an iteration"
    pace += "" if data["left"] is None else f", {duration(data['left'])} left"
    say(
        f"{data['model']}, {data['step']} of {data['max_steps']} iterations, {data['seconds'] / 60:.1f} minutes of "
        f"training{pace}, seed {data['seed']}. {data['environment']}"
    )
    if data["evaluations"]:
        say("")
        console.print(fitted(evaluation_table(data["evaluations"]), console))
    say("\n".join(["", *metric_lines(data["metrics"], console.width)]))
    for e in data["evaluations"]:
        if e["change"]:
            say(f"{e['name']}: {change_text(e['change'], measure_of(e['last']))}, paired by problem")
    for note in data["notes"]:
        say(f"iteration {note['step']}, {note['rule']}: {note['text']}")
    shares = data["percents"]
    say("\ntime: " + ", ".join(f"{n} {s:.0f} s ({shares[n]} %)" for n, s in data["times"].items() if shares.get(n)))
    say(f"rollouts on the page: {data['rollouts_note']}")


def change_text(change: Json, measure: str) -> str:
    """A paired change with its interval, in points of accuracy or in rewards."""
    scale, form, unit = (100, "+.1f", " points") if measure == "accuracy" else (1, "+.3f", "")
    mean, low, high = (f"{scale * change[key]:{form}}" for key in ("mean", "low", "high"))
    return f"{mean}{unit}, 95 % interval {low} to {high}"


def metric_lines(metrics: dict[str, list[float | None]], width: int) -> list[str]:
    """One line a metric: name, first value, sparkline, last value, unit. Metrics of the policy have the names of
    metrics.jsonl."""
    names = [
        ("reward", "reward", ""),
        *((f"rewards/{line.name}", line.key, "") for line in reward_parts(metrics).lines),
        ("inference steps", "steps", ""),
        ("forwards (NFE)", "nfe", ""),
        ("gradient norm", "grad_norm", ""),
        ("groups alike", "frac_reward_zero_std", ""),
        *((line.key, line.key, f" {chart.unit}".rstrip()) for chart in POLICY for line in shown(chart, metrics)),
    ]
    series = [(n, unit, [v for v in metrics.get(key, []) if v is not None]) for n, key, unit in names]
    series = [(n, unit, values) for n, unit, values in series if values]
    label = max([15, *(len(n) for n, _, _ in series)]) + 1
    spark = max(10, min(60, width - (label + 27)))
    lines = []
    for name, unit, values in series:
        course = f"{values[0]:>8.4g} {sparkline(thinned(values, spark), spark)} {values[-1]:.4g}{unit}"
        lines.append(f"{name:<{label}}{course}")
    return lines


def evaluation_table(evaluations: list[Json]) -> Table:
    """Held-out results at the start and the end of a run."""
    measures = "/".join(sorted({measure_of(e["last"]) for e in evaluations}))
    table = Table("sampler", title="Held out, before and after", title_justify="left", show_edge=False)
    table.add_column("iteration", justify="right", header_style="", no_wrap=True)
    for name in (measures, "95 % interval", "steps", "NFE"):
        table.add_column(name, justify="right")
    for e in evaluations:
        for values in (e["first"], e["last"]) if e["first"]["step"] != e["last"]["step"] else (e["last"],):
            name = e["name"] if values["step"] == e["first"]["step"] else ""
            counts = (f"{values['steps']:.1f}", f"{values['nfe']:.1f}")
            table.add_row(name, str(values["step"]), score_text(values), interval_text(values), *counts)
    return table


def thinned(values: list[float], width: int) -> list[float]:
    """Means of neighbouring values, at most `width` of them, so that a sparkline shows the whole run."""
    if len(values) <= width:
        return values
    edges = [i * len(values) // width for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
