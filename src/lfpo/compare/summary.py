"""The table of a comparison, and the curves of its figure, from the results of its cells."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from lfpo.compare.settings import BASE, CompareConfig
from lfpo.compare.statistics import bootstrap, frontier_area, paired, probability_of_improvement
from lfpo.eval.estimates import Estimate, over_seeds

Result = dict[str, Any]


def table(config: CompareConfig, base: Result | None, results: dict[str, list[Result]]) -> dict[str, Any]:
    """Columns, rows and caption. results: label -> finished cells, at most one a seed; an objective without any has an
    empty row."""
    first, rows = config.first, []
    at_start = [cell["curve"][0] for found in results.values() for cell in found]
    if base is not None:
        start = [_percent(at_start[0]["accuracy"]), f"{at_start[0]['nfe']:.2f}"] if at_start else ["", ""]
        rows.append([BASE, _percent(_area(base)), *start, "", "", "", ""])
    for label, found in results.items():
        if not found:
            rows.append([label, "missing", "", "", "", "", "", f"0 of {len(config.seeds)}"])
            continue
        at_end = [cell["curve"][-1] for cell in found]
        scores = [[_area(cell) for cell in found], [point["accuracy"] for point in at_end]]
        row = [label, *(_percent_of(over_seeds(score)) for score in scores)]
        row += [f"{fmean([point['nfe'] for point in at_end]):.2f}"]
        row += ["", ""] if label == first else _against(found, results[first])
        row += [f"{fmean([cell['flops'] for cell in found]) / 1e12:.2f}", f"{len(found)} of {len(config.seeds)}"]
        rows.append(row)
    columns = ["objective", "area", "accuracy", "forwards", f"minus {first}", f"P(above {first})", "TFLOPs", "runs"]
    return {
        "columns": columns,
        "rows": rows,
        "caption": "Means over seeds. Area: under accuracy over forwards, all thresholds, in %. Accuracy (%) and "
        f"forwards a completion: after training, sampler {config.curve_sampler}. Minus {first}: difference of areas on "
        f"equal seeds, in points. P: probability that a run has a larger area than one of {first}. In parentheses: "
        "95 % intervals, Student's t over seeds, for P a bootstrap.",
    }


def _against(found: list[Result], first: list[Result]) -> list[str]:
    """The paired difference of areas and the probability of improvement, over the first objective."""
    other = {cell["seed"]: _area(cell) for cell in first}
    both = [(_area(cell), other[cell["seed"]]) for cell in found if cell["seed"] in other]
    if not both:
        return ["", ""]
    a, b = [[x for x, _ in both]], [[y for _, y in both]]
    difference, better = paired(a, b), bootstrap(probability_of_improvement, a, b)
    return [_percent_of(difference, "+.1f"), f"{better.mean:.2f} ({better.low:.2f} to {better.high:.2f})"]


def curves(base: Result | None, results: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """Of the base and each objective with a finished cell: accuracy over training FLOPs (not for the base) and over
    forwards, as means over seeds with the lowest and highest seed."""
    found = [] if base is None else [{"label": BASE, "frontier": _band([base["frontier"]], "nfe", 1.0)}]
    for label, group in results.items():
        if group:
            frontier = _band([cell["frontier"] for cell in group], "nfe", 1.0)
            learning = _band([cell["curve"] for cell in group], "flops", 1e-12)
            found.append({"label": label, "frontier": frontier, "learning": learning})
    return found


def _band(lines: Sequence[Sequence[dict[str, float]]], axis: str, scale: float) -> dict[str, list[float]]:
    points = list(zip(*lines, strict=True))
    band = {"x": [round(scale * fmean([p[axis] for p in at]), 5) for at in points]}
    for name, reduce in (("mean", fmean), ("low", min), ("high", max)):
        band[name] = [round(reduce([p["accuracy"] for p in at]), 5) for at in points]
    return band


def _area(cell: Result) -> float:
    return frontier_area(cell["frontier"], cell["forwards"])


def _percent(share: float, form: str = ".1f") -> str:
    return f"{100 * share:{form}}"


def _percent_of(estimate: Estimate, form: str = ".1f") -> str:
    text = _percent(estimate.mean, form)
    if math.isnan(estimate.low):  # of one seed
        return text
    return f"{text} ({_percent(estimate.low)} to {_percent(estimate.high)})"
