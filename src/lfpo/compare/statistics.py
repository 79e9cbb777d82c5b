"""The area under a frontier, by which trained models are compared, statistics over tasks and seeds, and the table.

A frontier is a list of greedy decodings of a model at one confidence threshold each, with its score (accuracy, a share
of the problems, or mean reward) and forwards a completion (nfe). Scores are lists over tasks of lists over seeds; their
statistics are those of Agarwal et al. (arXiv 2108.13264, "rliable").
"""

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from lfpo.config.compare import BASE, CompareConfig
from lfpo.config.json import Json
from lfpo.core.rng import python_rng
from lfpo.eval.estimates import RESAMPLES, Estimate, students_interval

Point = Json
Result = Json  # of a cell
Scores = Sequence[Sequence[float]]


def measure_of(cell: Result) -> str:
    """What a cell's points hold: "accuracy", or "reward" of rows without a verifier."""
    return str(cell.get("measure", "accuracy"))


def score_of(point: Point) -> float:
    """The accuracy or mean reward of a point."""
    return point["accuracy"] if "accuracy" in point else point["reward"]


def frontier_area(points: Sequence[Point], forwards: float, start: float = 1.0) -> float:
    """Mean over log(forwards), from `start` to `forwards`, of the best accuracy that so many forwards buy.

    forwards: those of one token a forward, the completion's length. Between points accuracy is interpolated in
    log(nfe). Below the cheapest point accuracy is 0, past the last it stays.
    """
    end, at_start = math.log(forwards), accuracy_for(points, start)
    best = [] if at_start is None else [(math.log(start), at_start)]
    best += [(min(math.log(nfe), end), accuracy) for nfe, accuracy in best_points(points) if nfe > start]
    best.append((end, best[-1][1]))
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(best))
    return area / (end - math.log(start))


def best_points(points: Sequence[Point]) -> list[tuple[float, float]]:
    """(nfe, accuracy) of a frontier's points by rising cost, without those that cost more and are no better."""
    best: list[tuple[float, float]] = []
    for nfe, accuracy in sorted((p["nfe"], score_of(p)) for p in points):
        if not best or accuracy > best[-1][1]:
            best = [*(b for b in best if b[0] < nfe), (nfe, accuracy)]
    return best


def accuracy_for(points: Sequence[Point], nfe: float) -> float | None:
    """The best accuracy that `nfe` forwards a completion buy, read off the frontier as its area is. None below the
    cheapest point."""
    best = best_points(points)
    if nfe < best[0][0]:
        return None
    for (before, low), (after, high) in itertools.pairwise(best):
        if before <= nfe < after:
            return low + (high - low) * math.log(nfe / before) / math.log(after / before)
    return best[-1][1]


def probability_of_improvement(a: Scores, b: Scores) -> float:
    """P(a run of A scores higher than one of B) over all pairs of seeds of a task, ties half; mean over tasks."""
    tasks = [
        sum((x > y) + 0.5 * (x == y) for x in xs for y in ys) / (len(xs) * len(ys)) for xs, ys in zip(a, b, strict=True)
    ]
    return sum(tasks) / len(tasks)


def bootstrap(statistic: Callable[..., float], *groups: Scores) -> Estimate:
    """A statistic of one or more groups of scores, with its 95 % percentile interval from a stratified bootstrap:
    the seeds of each task of each group are drawn with replacement. The interval is NaN where every task has one
    seed."""
    if all(len(task) < 2 for scores in groups for task in scores):
        return Estimate(statistic(*groups), math.nan, math.nan)
    rng = python_rng("stratified bootstrap")
    samples = [
        statistic(*([[rng.choice(task) for _ in task] for task in scores] for scores in groups))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(samples, [0.025, 0.975]).tolist()
    return Estimate(statistic(*groups), low, high)


def paired(a: Scores, b: Scores) -> Estimate:
    """Mean difference A - B over runs of equal task and seed, with Student's t interval."""
    return students_interval([x - y for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True)])


def table(config: CompareConfig, base: Result | None, results: dict[str, list[Result]]) -> Json:
    """Columns, rows and caption. results: label -> finished cells, at most one a seed; an objective without any has an
    empty row."""
    first, rows = config.first, []
    every = [*([] if base is None else [base]), *(cell for finished in results.values() for cell in finished)]
    measure = next(map(measure_of, every), "accuracy")
    at_start = [cell["curve"][0] for finished in results.values() for cell in finished]
    if base is not None:
        start = [shown(score_of(at_start[0]), measure), f"{at_start[0]['nfe']:.2f}"] if at_start else ["", ""]
        rows.append([BASE, shown(_area(base), measure), *start, "", "", "0.00", "1 of 1"])
    for label, finished in results.items():
        if not finished:
            rows.append([label, "missing", "", "", "", "", "", f"0 of {len(config.seeds)}"])
            continue
        at_end = [cell["curve"][-1] for cell in finished]
        scores = [[_area(cell) for cell in finished], [score_of(point) for point in at_end]]
        row = [label, *(_shown(students_interval(score), measure) for score in scores)]
        row += [f"{fmean([point['nfe'] for point in at_end]):.2f}"]
        row += ["", ""] if label == first else _against(finished, results[first], measure)
        row += [f"{fmean([cell['flops'] for cell in finished]) / 1e12:.2f}", f"{len(finished)} of {len(config.seeds)}"]
        rows.append(row)
    columns = ["objective", "area", measure, "forwards", f"minus {first}", f"P(above {first})", "TFLOPs", "runs"]
    units = (", in %", " (%)", ", in points") if measure == "accuracy" else ("", "", "")
    return {
        "columns": columns,
        "rows": rows,
        "caption": f"Means over seeds. Area: under {measure} over forwards, all thresholds{units[0]}. "
        f"{measure.capitalize()}{units[1]} and forwards a completion: after training, sampler {config.curve_sampler}. "
        f"Minus {first}: difference of areas on equal seeds{units[2]}. P: probability that a run has a larger area "
        f"than one of {first}. In parentheses: 95 % intervals, Student's t over seeds, for P a bootstrap; one seed has "
        "none.",
    }


def _against(finished: list[Result], first: list[Result], measure: str) -> list[str]:
    """The paired difference of areas and the probability of improvement, over the first objective."""
    other = {cell["seed"]: _area(cell) for cell in first}
    both = [(_area(cell), other[cell["seed"]]) for cell in finished if cell["seed"] in other]
    if not both:
        return ["", ""]
    a, b = [[x for x, _ in both]], [[y for _, y in both]]
    difference, better = paired(a, b), bootstrap(probability_of_improvement, a, b)
    return [_shown(difference, measure, "+"), _with_interval(better, ".2f")]


def curves(base: Result | None, results: dict[str, list[Result]]) -> list[Json]:
    """Accuracy over training FLOPs and over forwards, for each objective with a finished cell and (over forwards alone)
    for the base: means over seeds, with the lowest and highest seed."""
    drawn = [] if base is None else [{"label": BASE, "frontier": _band([base["frontier"]], "nfe", 1.0)}]
    for label, group in results.items():
        if group:
            frontier = _band([cell["frontier"] for cell in group], "nfe", 1.0)
            learning = _band([cell["curve"] for cell in group], "flops", 1e-12)
            drawn.append({"label": label, "frontier": frontier, "learning": learning})
    return drawn


def _band(lines: Sequence[Sequence[dict[str, float]]], axis: str, scale: float) -> dict[str, list[float]]:
    points = list(zip(*lines, strict=True))
    band = {"x": [round(scale * fmean([p[axis] for p in at]), 5) for at in points]}
    for name, reduce in (("mean", fmean), ("low", min), ("high", max)):
        band[name] = [round(reduce([score_of(p) for p in at]), 5) for at in points]
    return band


def _area(cell: Result) -> float:
    return frontier_area(cell["frontier"], cell["forwards"])


def shown(value: float, measure: str) -> str:
    """An accuracy in percent, a reward as it is."""
    return _shown(Estimate(value, math.nan, math.nan), measure)


def _shown(estimate: Estimate, measure: str, sign: str = "") -> str:
    scale, form = (100, ".1f") if measure == "accuracy" else (1, ".3f")
    values = (scale * value for value in (estimate.mean, estimate.low, estimate.high))
    return _with_interval(Estimate(*values), sign + form)


def _with_interval(estimate: Estimate, form: str) -> str:
    text, plain = f"{estimate.mean:{form}}", form.removeprefix("+")
    if math.isnan(estimate.low):  # of one seed
        return text
    return f"{text} ({estimate.low:{plain}} to {estimate.high:{plain}})"
