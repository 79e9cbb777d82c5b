"""Counts over many completions: reveal maps, and histograms of rewards."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

BINS = 20
CELLS = (64, 32)  # most positions and most steps of a reveal map


def reveal_maps(parts: list[tuple[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Reveal maps of the records of several iterations, all with the same positions and steps.

    parts: (iteration, its records).
    """
    every = [r for _, records in parts for r in records]
    length = max((len(r["reveal_step"]) for r in every), default=0)
    steps = max((s for r in every for s in r["reveal_step"]), default=-1) + 1
    return [{"step": step, **reveal_map(records, length, steps)} for step, records in parts] if length and steps else []


def reveal_map(records: list[dict[str, Any]], length: int, steps: int) -> dict[str, Any]:
    """How often each of `length` positions was revealed at each of `steps` steps, positions and steps binned.

    cells: [x, y, share] with x the bin of the position and y that of the step. The share is over the records whose
    completion reaches the position, so each column x sums to 1. reveals: number of steps that revealed anything, mean
    over records.
    """
    width, height = min(length, CELLS[0]), min(steps, CELLS[1])
    counts, column = Counter[tuple[int, int]](), Counter[int]()
    for record in records:
        end = len(record["tokens"]) if "tokens" in record else length
        for position, step in enumerate(record["reveal_step"][:end]):
            if step >= 0:
                x, y = position * width // length, step * height // steps
                counts[x, y] += 1
                column[x] += 1
    cells = [[x, y, round(n / column[x], 3)] for (x, y), n in sorted(counts.items())]
    used = [len({s for s in r["reveal_step"] if s >= 0}) for r in records]
    return {
        "n": len(records),
        "positions": length,
        "steps": steps,
        "width": width,
        "height": height,
        "cells": cells,
        "reveals": round(sum(used) / len(used), 2),
    }


def reward_histograms(records: list[dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    """Histograms of what the objective takes in place of the reward, and of rewards minus the mean of their group.

    agreement: where all rewards are 0 or 1, the shares of groups that are all right, all wrong, and mixed.
    """
    size, rewards = config["num_generations"], [r["reward"] for r in records]
    groups = [rewards[i : i + size] for i in range(0, len(rewards), size)]
    advantages = [reward - sum(group) / len(group) for group in groups for reward in group]
    ends = (0.0, 1.0) if config["objective"]["name"] == "lfpo" else None  # LFPO's r lies in [0, 1]
    found: dict[str, Any] = {"r": histogram([r["r"] for r in records], ends), "advantage": histogram(advantages)}
    if records and set(rewards) <= {0.0, 1.0}:
        right = [sum(group) for group in groups]
        shares = {"all right": right.count(size), "all wrong": right.count(0.0)}
        shares["mixed"] = len(right) - sum(shares.values())
        found["agreement"] = {name: n / len(right) for name, n in shares.items()}
    return found


def histogram(values: Sequence[float], ends: tuple[float, float] | None = None) -> dict[str, Any]:
    """low, high and counts of BINS equal bins, or of one bin where all values are equal. Ignores NaN and infinities.

    ends: the range to cover. If a value lies outside it, the range is that of the values.
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return {"low": 0.0, "high": 0.0, "counts": []}
    low, high = min(finite), max(finite)
    if ends and ends[0] <= low and high <= ends[1]:
        low, high = ends
    bins = BINS if high > low else 1
    counts = [0] * bins
    for v in finite:
        counts[min(bins - 1, int((v - low) / ((high - low) or 1) * bins))] += 1
    return {"low": round(low, 4), "high": round(high, 4), "counts": counts}
