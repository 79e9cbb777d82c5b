"""The area under a frontier, by which trained models are compared, and statistics over tasks and seeds.

A frontier is a list of greedy decodings of a model at one confidence threshold each, with accuracy (a share of the
problems) and forwards a completion (nfe). Scores are lists over tasks of lists over seeds; their statistics are those
of Agarwal et al. (arXiv 2108.13264, "rliable").
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lfpo.base.rng import python_rng
from lfpo.eval.estimates import Estimate, over_seeds

Point = dict[str, Any]
Scores = Sequence[Sequence[float]]

RESAMPLES = 2000


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
    for nfe, accuracy in sorted((p["nfe"], p["accuracy"]) for p in points):
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
    the seeds of each task of each group are drawn with replacement."""
    rng = python_rng("stratified bootstrap")
    found = [
        statistic(*([[rng.choice(task) for _ in task] for task in scores] for scores in groups))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(found, [0.025, 0.975]).tolist()
    return Estimate(statistic(*groups), low, high)


def paired(a: Scores, b: Scores) -> Estimate:
    """Mean difference A - B over runs of equal task and seed, with Student's t interval."""
    return over_seeds([x - y for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True)])
