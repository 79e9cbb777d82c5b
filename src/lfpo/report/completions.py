"""Which completions a page carries, as the player and the table show them, and counts over many of them."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from lfpo.base.spacing import evenly_spaced
from lfpo.config.json import Json
from lfpo.report.records import CompletionRecord, numbered, read_records
from lfpo.rewards.answers import prompt_text

T = TypeVar("T")

FILES = 24  # iterations whose rollouts are read for a page
ROWS = 240  # rollouts on it, in whole groups
PLAYED = 16  # prompts of rollouts in the player, where a run has no evaluation
BUDGET = 3_000_000  # most characters of JSON for the table's rollouts, and as many for the evaluations' completions
BINS = 20  # of a histogram
CELLS = (64, 32)  # most positions and most steps of a reveal map


def evaluation_samples(folder: Path, config: Json, last: int) -> tuple[Json, str]:
    """Kept completions of the first evaluation and of the last one up to iteration `last`, and a note.

    folder: the run's. problems: sampler -> one list [first, last] a problem. maps: the reveal maps of each sampler. The
    note says what was left out, "" for nothing.
    """
    files = numbered(folder / "eval", last)
    if not files:
        return {"problems": {}, "maps": []}, "this run kept no completions of its evaluations"
    by_problem: dict[str, dict[int, list[CompletionRecord]]] = {}
    by_sampler: dict[str, dict[int, list[CompletionRecord]]] = {}
    for step, path in dict([files[0], files[-1]]).items():
        for record in read_records(path):
            # Of other problems it holds verdicts only.
            if "completion" in record:
                entries = by_problem.setdefault(record["sampler"], {}).setdefault(record["problem"], [])
                entries.append({"step": step, **playable(record, config)})
                by_sampler.setdefault(record["sampler"], {}).setdefault(step, []).append(record)
    pairs = {s: [entries for _, entries in sorted(p.items())] for s, p in by_problem.items()}
    shown = {s: _within(p, BUDGET // len(pairs)) for s, p in pairs.items()}
    total = sum(map(len, pairs.values()))
    left_out = total - sum(map(len, shown.values()))
    note = f"{left_out} of {total} kept problems are left out to keep this page small" if left_out else ""
    maps = [{"sampler": s, "panels": reveal_maps(list(m.items()))} for s, m in by_sampler.items()]
    return {"problems": shown, "maps": maps}, note


def verdicts(folder: Path, step: int) -> dict[str, dict[int, bool | float | None]]:
    """The verdicts, or rewards, of the evaluation after `step` iterations, for each sampler by problem. None: not
    judged there."""
    by_sampler: dict[str, dict[int, bool | float | None]] = {}
    path = folder / f"eval/step-{step}.jsonl"
    for record in read_records(path) if path.exists() else []:
        if "correct" in record or "reward" in record:
            value = record["correct"] if "correct" in record else record["reward"]
            by_sampler.setdefault(record["sampler"], {})[record["problem"]] = value
    return by_sampler


def rollout_sample(folder: Path, config: Json, last: int) -> Json:
    """Groups of rollouts, histograms and reveal maps, from iterations spread evenly up to iteration `last`."""
    files = numbered(folder / "rollouts", last)
    parts = [(step, read_records(path)) for step, path in evenly_spaced(files, FILES)]
    groups: list[Json] = []
    histograms, maps = [], []
    for number, (step, records) in enumerate(parts):
        all_groups = groups_of(records, config["num_generations"])
        is_target = config["objective"]["name"] == "lfpo"
        histograms.append({"step": step, "r_is_target": is_target, **reward_histograms(all_groups, is_target)})
        # The first and the last iteration get half of the rows; the others share the rest.
        share = ROWS // 2 // max(1, len(parts) - 2)
        if number in (0, len(parts) - 1):
            maps.append((step, records))
            share = ROWS // 4
        groups += [
            {"step": step, "rows": [table_row(r, config) for r in group]}
            for group in evenly_spaced(all_groups, max(1, share * len(all_groups) // len(records)))
        ]
    fitting = _within(groups, BUDGET)
    shown, read = sum(len(group["rows"]) for group in fitting), sum(len(records) for _, records in parts)
    if not files:
        note = "this run kept no rollouts (log_completions: false)"
    elif shown == read and len(parts) == len(files):
        note = f"all {read:,} rollouts"
    else:
        iterations = f"{len(parts)} of {len(files):,} iterations"
        note = f"{shown:,} of {read:,} rollouts from {iterations}; the run's rollouts/ folder holds all"
    return {
        "groups": fitting,
        "rollouts_note": note,
        "histograms": histograms,
        "rollout_maps": {"sampler": "rollouts", "panels": reveal_maps(maps)} if maps else None,
    }


def groups_of(records: list[CompletionRecord], size: int) -> list[list[CompletionRecord]]:
    """Rollouts of the same prompt that follow each other; several groups of `size` where a prompt was drawn again at
    once. The file decides, since a resume may change num_generations."""
    same = [list(group) for _, group in itertools.groupby(records, key=lambda record: record["asked"])]
    cut = [size if len(group) % size == 0 else len(group) for group in same]
    return [group[i : i + n] for group, n in zip(same, cut, strict=True) for i in range(0, len(group), n)]


def _reward(row: Json) -> float:
    """For a maximum: a rollout without a reward is the last to be taken."""
    return -math.inf if row["reward"] is None else row["reward"]


def rollouts_to_play(groups: list[Json]) -> Json:
    """The player's data for a run without evaluation: the best rollout of each prompt of the newest iteration, after
    the best of an older iteration where the page has the same prompt."""
    older: dict[str, Json] = {}
    best = []
    for group in groups:
        row: Json = max(group["rows"], key=_reward)
        best.append({"step": group["step"], **row})
    for row in best:
        older.setdefault(row["prompt"], row)
    newest = [row for row in best if row["step"] == best[-1]["step"]][:PLAYED]
    pairs = [[older[row["prompt"]], row] if older[row["prompt"]] is not row else [row] for row in newest]
    return {"problems": {"rollouts": pairs} if pairs else {}, "maps": []}


def _within(items: list[T], budget: int) -> list[T]:
    """As many items, evenly spread, as fit into `budget` characters of JSON."""
    size = len(json.dumps(items))
    # A tenth less than the mean size allows: the items that are left may be longer than the mean.
    return items if size <= budget else evenly_spaced(items, max(1, int(len(items) * budget / size * 0.9)))


def playable(record: CompletionRecord, config: Json) -> Json:
    """A completion in the player: its tokens, reveal steps and Sudoku grid.

    edits: for each edited position the tokens that it held, each as [step, text, confidence].
    """
    length = len(record["tokens"])
    shown = {
        "prompt": prompt_text(record["prompt"]),
        "steps": record["scheduled_steps"],
        "nfe": record["nfe"],
        "tokens": record["tokens"],
        "reveal": record["reveal_step"][:length],
        "confidence": [round(c, 3) for c in record["confidence"][:length]],
    }
    for name in ("correct", "reward"):
        if record.get(name) is not None:
            shown[name] = record[name]
    if columns := record.get("columns"):
        shown["columns"] = columns
    held = {int(i): tokens for i, tokens in record.get("edits", {}).items() if int(i) < length}
    text = "".join(record["tokens"])
    if "sudoku" in str(config.get("task")) and (grid := sudoku_grid(shown["prompt"], text)):
        shown["grid"] = grid
        for i, tokens in held.items():  # a grid shows a digit from the step on that wrote it for the last time
            shown["reveal"][i], _, _, shown["confidence"][i] = tokens[-1]
        return shown
    if held:
        shown["edits"] = {i: [[step, piece, sure] for step, _, piece, sure in tokens] for i, tokens in held.items()}
    return shown


def table_row(record: CompletionRecord, config: Json) -> Json:
    fields = {name: record.get(name) for name in ("completion", "rewards", "reward")}
    return {**playable(record, config), **fields, "r": None if record["r"] is None else round(record["r"], 4)}


def sudoku_grid(prompt: str, completion: str) -> Json | None:
    """The puzzle in a prompt, blanks as ".", and where the completion writes its grid; None without a complete grid.

    at: index of the grid's first character in the completion.
    """
    for cells in (16, 81):
        puzzles = re.findall(rf"(?<!\w)[0-9A-P_.]{{{cells}}}(?!\w)", prompt)
        grids = list(re.finditer(rf"(?<!\d)[1-9]{{{cells}}}(?!\d)", completion))
        if puzzles and grids:
            return {"puzzle": re.sub(r"[^1-9]", ".", puzzles[-1]), "at": grids[-1].start()}
    return None


def reveal_maps(parts: list[tuple[int, list[CompletionRecord]]]) -> list[Json]:
    """Reveal maps of the records of several iterations, (iteration, its records), all with the same positions and
    steps."""
    all_records = [r for _, records in parts for r in records]
    length = max((len(r["reveal_step"]) for r in all_records), default=0)
    steps = max((s for r in all_records for s in r["reveal_step"]), default=-1) + 1
    return [{"step": step, **reveal_map(records, length, steps)} for step, records in parts] if length and steps else []


def reveal_map(records: list[CompletionRecord], length: int, steps: int) -> Json:
    """How often each of `length` positions was revealed at each of `steps` steps, positions and steps binned.

    cells: [x, y, share] with x the bin of the position and y that of the step. The share is over the records whose
    completion reaches the position, so each column x sums to 1. reveals: number of steps that revealed anything, mean
    over records.
    """
    width, height = min(length, CELLS[0]), min(steps, CELLS[1])
    counts, column = Counter[tuple[int, int]](), Counter[int]()
    for record in records:
        for position, step in enumerate(record["reveal_step"][: len(record["tokens"])]):
            if step >= 0:
                x, y = position * width // length, step * height // steps
                counts[x, y] += 1
                column[x] += 1
    used = [len({s for s in r["reveal_step"] if s >= 0}) for r in records]
    return {
        "n": len(records),
        "positions": length,
        "steps": steps,
        "width": width,
        "height": height,
        "cells": [[x, y, round(n / column[x], 3)] for (x, y), n in sorted(counts.items())],
        "reveals": round(sum(used) / len(used), 2),
    }


def reward_histograms(rollouts: list[list[CompletionRecord]], is_target: bool) -> Json:
    """Histograms of what the objective takes in place of the reward, and of rewards minus the mean of their group.

    rollouts: in groups. is_target: whether r is LFPO's, in [0, 1]. agreement: where all rewards are 0 or 1, the shares
    of groups that are all right, all wrong, and mixed.
    """
    rewards = [[record["reward"] for record in group if record["reward"] is not None] for group in rollouts]
    groups = [group for group in rewards if group]
    advantages = [reward - sum(group) / len(group) for group in groups for reward in group]
    signals = [record["r"] for group in rollouts for record in group if record["r"] is not None]
    histograms: Json = {"r": histogram(signals, (0.0, 1.0) if is_target else None), "advantage": histogram(advantages)}
    if groups and {reward for group in groups for reward in group} <= {0.0, 1.0}:
        right = [sum(group) / len(group) for group in groups]
        shares = {"all right": right.count(1.0), "all wrong": right.count(0.0)}
        shares["mixed"] = len(right) - sum(shares.values())
        histograms["agreement"] = {name: n / len(right) for name, n in shares.items()}
    return histograms


def histogram(values: Sequence[float], ends: tuple[float, float] | None = None) -> Json:
    """low, high and counts of BINS equal bins, or of one bin where all values are equal.

    ends: the range to cover. If a value lies outside it, the range is that of the values.
    """
    if not values:
        return {"low": 0.0, "high": 0.0, "counts": []}
    low, high = min(values), max(values)
    if ends and ends[0] <= low and high <= ends[1]:
        low, high = ends
    bins = BINS if high > low else 1
    width = (high - low) or 1
    counts = Counter(min(bins - 1, int((v - low) / width * bins)) if bins > 1 else 0 for v in values)
    return {"low": round(low, 4), "high": round(high, 4), "counts": [counts[i] for i in range(bins)]}
