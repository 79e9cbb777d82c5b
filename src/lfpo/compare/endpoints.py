"""What a comparison reports of a cell. This file is fixed before the grid runs; docs/comparison.md says it in words.

A curve is a list of evaluations during training, each with the step, FLOPs and rollouts so far and an accuracy. A
frontier is a list of greedy decodings of the trained model at one confidence threshold each, with accuracy and forwards
a completion (nfe). Accuracies are shares of problems.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

Point = dict[str, Any]

# The thresholds of a frontier. Below 0.5 a revealed token need not be the most probable one; at 0.998 nearly every
# forward reveals one token.
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.998)
PRIMARY = "frontier"  # the endpoint that tuning and the goal go by
FROM_2 = "from 2 forwards"  # added after the first evaluation: what few forwards buy is often too wrong to be used
AXES = ("flops", "rollouts")


def best_points(points: Sequence[Point]) -> list[tuple[float, float]]:
    """(nfe, accuracy) of a frontier's points by rising cost, without those that cost more and are no better."""
    best: list[tuple[float, float]] = []
    for nfe, accuracy in sorted((p["nfe"], p["accuracy"]) for p in points):
        if not best or accuracy > best[-1][1]:
            best = [*(b for b in best if b[0] < nfe), (nfe, accuracy)]
    return best


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


def best_level(curve: Sequence[Point]) -> float:
    """The best accuracy of a curve."""
    return max(p["accuracy"] for p in curve)


def accuracy_at(curve: Sequence[Point], axis: str, budget: float) -> float:
    """Accuracy at a budget of FLOPs or rollouts, interpolated between evaluations; past the last it stays."""
    for before, after in itertools.pairwise(curve):
        if before[axis] <= budget <= after[axis] and after[axis] > before[axis]:
            share = (budget - before[axis]) / (after[axis] - before[axis])
            return before["accuracy"] + share * (after["accuracy"] - before["accuracy"])
    return curve[-1]["accuracy"]


def area_under_curve(curve: Sequence[Point], budget: float) -> float:
    """Mean accuracy over FLOPs from the curve's start to a budget; accuracy stays past the last evaluation."""
    start = curve[0]["flops"]
    inside = [(p["flops"], p["accuracy"]) for p in curve if p["flops"] < budget]
    points = [*inside, (budget, accuracy_at(curve, "flops", budget))]
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(points))
    return area / (budget - start)


def cost_of_level(curve: Sequence[Point], level: float, axis: str) -> float | None:
    """The cost at which a curve first reaches a level (that of its first point if it starts there); None if never."""
    if curve[0]["accuracy"] >= level:
        return curve[0][axis]
    for before, after in itertools.pairwise(curve):
        if after["accuracy"] >= level > before["accuracy"]:
            share = (level - before["accuracy"]) / (after["accuracy"] - before["accuracy"])
            return before[axis] + share * (after[axis] - before[axis])
    return None


def collapsed(curve: Sequence[Point]) -> bool:
    """Whether training left the model less accurate than it found it."""
    return curve[-1]["accuracy"] < curve[0]["accuracy"]


def rate_sensitivity(scores: Sequence[float]) -> float:
    """What a rate taken at random from those that were tried costs: the best mean score of a rate minus the mean."""
    return max(scores) - sum(scores) / len(scores)


def budgets(curves: Sequence[Sequence[Point]]) -> dict[str, float]:
    """The budget on each axis at which curves are compared: what the cheapest of them spent in all."""
    return {axis: min(curve[-1][axis] for curve in curves) for axis in AXES}


def frontier_areas(cell: dict[str, Any]) -> dict[str, float]:
    """The endpoints of a cell that need no learning curve, name -> value; an untrained model has them, too."""
    points, forwards = cell["frontier"], cell["forwards"]
    return {PRIMARY: frontier_area(points, forwards), FROM_2: frontier_area(points, forwards, start=2.0)}


def endpoints(cell: dict[str, Any], budget: dict[str, float]) -> dict[str, float]:
    """All endpoints of one finished cell, name -> value."""
    curve = cell["curve"]
    return {
        **frontier_areas(cell),
        "best": best_level(curve),
        "area": area_under_curve(curve, budget["flops"]),
        "flops": accuracy_at(curve, "flops", budget["flops"]),
        "rollouts": accuracy_at(curve, "rollouts", budget["rollouts"]),
        "collapsed": float(collapsed(curve)),
    }
