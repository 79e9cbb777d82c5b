"""Which completions a page carries, and what it needs to replay them: texts, reveal steps, grids, highlighting."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from lfpo.base.batching import spread
from lfpo.base.errors import UserError

T = TypeVar("T")

FILES = 24  # iterations whose rollouts are read for a page
ROWS = 240  # rollouts in its table
BUDGET = 3_000_000  # characters of JSON for the table's rollouts, and again for the evaluations' completions
BINS = 20
CELLS = (64, 32)  # of a reveal map at most: positions, steps
INK = {"Keyword": "k", "String": "s", "Comment": "c", "Number": "n", "Name.Function": "f", "Name.Builtin": "f"}


def evaluation_samples(folder: Path, config: dict[str, Any], last: int) -> tuple[dict[str, Any], str]:
    """Kept completions of the first and the last evaluation: sampler -> problem -> [first, last], and reveal maps.

    The note says what is missing, "" for nothing.
    """
    files = numbered(folder, "eval", last)
    if not files:
        return {"problems": {}, "maps": []}, "this run kept no completions of its evaluations"
    ends = [files[0]] if len(files) == 1 else [files[0], files[-1]]
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    by_sampler: dict[str, list[tuple[int, list[dict[str, Any]]]]] = {}
    for step, path in ends:
        records = read_records(path)
        for sampler in dict.fromkeys(r["sampler"] for r in records):
            mine = [r for r in records if r["sampler"] == sampler]
            by_sampler.setdefault(sampler, []).append((step, mine))
            for record in mine:
                entries = found.setdefault(sampler, {}).setdefault(record["problem"], [])
                entries.append({"step": step, **playable(record, config)})
    pairs = {s: [entries for _, entries in sorted(p.items())] for s, p in found.items()}
    total = sum(len(p) for p in pairs.values())
    kept = {s: _within(p, BUDGET // max(1, len(pairs))) for s, p in pairs.items()}
    left_out = total - sum(len(p) for p in kept.values())
    note = f"{left_out} of {total} kept problems are left out to keep this page small" if left_out else ""
    return {"problems": kept, "maps": [{"sampler": s, "panels": reveal_maps(m)} for s, m in by_sampler.items()]}, note


def rollout_sample(folder: Path, config: dict[str, Any], last: int) -> dict[str, Any]:
    """Rollouts for the table, their histograms and reveal maps, from iterations spread evenly over the run."""
    files = numbered(folder, "rollouts", last)
    chosen = spread(files, FILES)
    rows: list[dict[str, Any]] = []
    histograms, maps, read = [], [], 0
    for number, (step, path) in enumerate(chosen):
        records = read_records(path)
        read += len(records)
        histograms.append({"step": step, **_histograms(records, config)})
        if number in (0, len(chosen) - 1):
            maps.append((step, records))
        # The last iteration gets half the table, the others share the rest.
        share = ROWS // 2 if number == len(chosen) - 1 else max(1, ROWS // 2 // max(1, len(chosen) - 1))
        rows += [{"step": step, **table_row(r, config)} for r in spread(records, share)]
    rows.reverse()
    kept = _within(rows, BUDGET)
    every = config["prompts_per_iteration"] * config["num_generations"] * len(files)
    if not files:
        note = "this run kept no rollouts (log_completions: false)"
    elif len(kept) == read and len(chosen) == len(files):
        note = f"all {read:,} rollouts"
    else:
        note = (
            f"{len(kept):,} of {every:,} rollouts: a sample from {len(chosen)} of {len(files):,} iterations, half of "
            "it from the newest; the run's rollouts/ folder holds all"
        )
    return {
        "rollouts": kept,
        "rollouts_note": note,
        "histograms": histograms,
        "rollout_maps": {"sampler": "rollouts", "panels": reveal_maps(maps)} if maps else None,
    }


def numbered(folder: Path, name: str, last: int) -> list[tuple[int, Path]]:
    """(N, path) of `name/step-N.jsonl`, ascending, up to the last iteration that metrics.jsonl knows."""
    found = []
    for path in folder.glob(f"{name}/step-*.jsonl"):
        number = path.stem.removeprefix("step-")
        if number.isdecimal() and int(number) <= last:
            found.append((int(number), path))
    return sorted(found)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file. Raises UserError that names the line which is none."""
    records = []
    # Not splitlines: completions may hold characters that it takes for line ends.
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}:{number}: not a JSON object ({error}); remove the line or the file") from error
    return records


def _within(items: list[T], budget: int) -> list[T]:
    """As many items, evenly spread, as fit into `budget` characters of JSON."""
    size = len(json.dumps(items))
    return items if size <= budget else spread(items, max(1, int(len(items) * budget / size * 0.9)))


def prompt_text(prompt: Any) -> str:
    """A prompt as text; messages with their roles."""
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def playable(record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What the player needs of a record. `tokens` is missing in runs that did not keep token texts."""
    shown = {
        "prompt": prompt_text(record["prompt"]),
        "steps": record["scheduled_steps"],
        "nfe": record["nfe"],
    }
    if "correct" in record:
        shown["correct"] = record["correct"]
    if "tokens" not in record:
        return {**shown, "completion": record["completion"]}
    length = len(record["tokens"])
    shown |= {
        "tokens": record["tokens"],
        "reveal": record["reveal_step"][:length],
        "confidence": [round(c, 3) for c in record["confidence"][:length]],
    }
    text = "".join(record["tokens"])
    if "sudoku" in str(config.get("task")) and (grid := sudoku_grid(shown["prompt"], text)):
        shown["grid"] = grid
    elif ink := highlight(text):
        shown["ink"] = ink
    return shown


def table_row(record: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    return {
        **playable(record, config),
        "completion": record["completion"],
        "rewards": record["rewards"],
        "reward": record["reward"],
        "r": round(record["r"], 4),
    }


def sudoku_grid(prompt: str, completion: str) -> dict[str, Any] | None:
    """Where a completion writes its grid, and the puzzle, its blanks as "."; None where there is no whole grid.

    at: index of the grid's first character in the completion.
    """
    for cells in (16, 81):
        puzzles = re.findall(rf"(?<!\w)[0-9A-P_.]{{{cells}}}(?!\w)", prompt)
        grids = list(re.finditer(rf"(?<!\d)[1-9]{{{cells}}}(?!\d)", completion))
        if puzzles and grids:
            return {"puzzle": re.sub(r"[^1-9]", ".", puzzles[-1]), "at": grids[-1].start()}
    return None


def highlight(completion: str) -> list[list[Any]] | None:
    """Runs [class, characters] over a completion that holds a fenced block of Python or is a function; else None."""
    fence = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", completion, re.DOTALL)
    if fence is None and not re.match(r"\s*(?:def|class|import|from) \w", completion):
        return None
    from pygments.lexers.python import PythonLexer

    start, code = (fence.start(1), fence.group(1)) if fence else (0, completion)
    runs: list[list[Any]] = [["", start]] if start else []
    # get_tokens would strip and normalise; the page needs every character where it is.
    for _, kind, value in PythonLexer().get_tokens_unprocessed(code):
        name = str(kind).removeprefix("Token.")
        ink = next((short for prefix, short in INK.items() if f"{prefix}." in f"{name.replace('Literal.', '')}."), "")
        if runs and runs[-1][0] == ink:
            runs[-1][1] += len(value)
        else:
            runs.append([ink, len(value)])
    return runs


def reveal_maps(parts: list[tuple[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Reveal maps of the records of several iterations, on one scale."""
    every = [r for _, records in parts for r in records]
    length = max((len(r["reveal_step"]) for r in every), default=0)
    steps = max((s for r in every for s in r["reveal_step"]), default=-1) + 1
    return [{"step": step, **reveal_map(records, length, steps)} for step, records in parts] if length and steps else []


def reveal_map(records: list[dict[str, Any]], length: int, steps: int) -> dict[str, Any]:
    """How often each position was revealed at each step, over records: cells [x, y, share], positions and steps binned.

    share is over the records whose completion reaches the position; each column of x sums to 1. reveals: how many
    steps revealed anything, mean over records.
    """
    width, height = min(length, CELLS[0]), min(steps, CELLS[1])
    counts: dict[tuple[int, int], int] = {}
    column = [0] * width
    for record in records:
        end = len(record["tokens"]) if "tokens" in record else length
        for position, step in enumerate(record["reveal_step"][:end]):
            if step >= 0:
                x, y = position * width // length, step * height // steps
                counts[x, y] = counts.get((x, y), 0) + 1
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


def _histograms(records: list[dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    """Counts of what the objective learned from, and of rewards minus the mean of their group."""
    rewards = [r["reward"] for r in records]
    group = config["num_generations"]
    advantages = []
    for start in range(0, len(rewards), group):
        part = rewards[start : start + group]
        advantages += [x - sum(part) / len(part) for x in part]
    ends = (0.0, 1.0) if config["objective"]["name"] == "lfpo" else None  # LFPO's r is a share
    return {"r": histogram([r["r"] for r in records], ends), "advantage": histogram(advantages)}


def histogram(values: Sequence[float], ends: tuple[float, float] | None = None) -> dict[str, Any]:
    """low, high and counts of BINS equal bins (one for equal values), values that are not finite left out.

    ends: the range to cover, unless a value lies outside it.
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
