"""Which completions a page carries: those of the first and last evaluation, and a sample of the rollouts' groups."""

import json
from pathlib import Path
from typing import Any, TypeVar

from lfpo.base.batching import evenly_spaced
from lfpo.base.errors import UserError
from lfpo.report.counts import reveal_maps, reward_histograms
from lfpo.report.replay import playable, table_row

T = TypeVar("T")

FILES = 24  # iterations whose rollouts are read for a page
ROWS = 240  # rollouts on it, in whole groups
PLAYED = 16  # prompts of rollouts in the player, where a run has no evaluation
BUDGET = 3_000_000  # most characters of JSON for the table's rollouts, and as many for the evaluations' completions


def evaluation_samples(folder: Path, config: dict[str, Any], last: int) -> tuple[dict[str, Any], str]:
    """Kept completions of the first evaluation and of the last one up to iteration `last`, and a note.

    problems: sampler -> one list [first, last] a problem. maps: the reveal maps of each sampler. The note says what was
    left out, "" for nothing.
    """
    files = numbered(folder, "eval", last)
    if not files:
        return {"problems": {}, "maps": []}, "this run kept no completions of its evaluations"
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    by_sampler: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for step, path in dict.fromkeys([files[0], files[-1]]):
        for record in read_records(path):
            if "completion" in record:  # of other problems it holds verdicts only
                sampler = record["sampler"]
                entries = found.setdefault(sampler, {}).setdefault(record["problem"], [])
                entries.append({"step": step, **playable(record, config)})
                by_sampler.setdefault(sampler, {}).setdefault(step, []).append(record)
    pairs = {s: [entries for _, entries in sorted(p.items())] for s, p in found.items()}
    total = sum(len(p) for p in pairs.values())
    kept = {s: _within(p, BUDGET // max(1, len(pairs))) for s, p in pairs.items()}
    left_out = total - sum(len(p) for p in kept.values())
    note = f"{left_out} of {total} kept problems are left out to keep this page small" if left_out else ""
    maps = [{"sampler": s, "panels": reveal_maps(list(m.items()))} for s, m in by_sampler.items()]
    return {"problems": kept, "maps": maps}, note


def verdicts(folder: Path, step: int) -> dict[str, list[float]]:
    """The verdicts of the evaluation after `step` iterations, 1.0 or 0.0 by problem, for each sampler."""
    path = folder / f"eval/step-{step}.jsonl"
    found: dict[str, list[float]] = {}
    for record in read_records(path) if path.exists() else []:
        if record.get("correct") is not None:  # None: not judged on this machine
            found.setdefault(record["sampler"], []).append(float(record["correct"]))
    return found


def rollout_sample(folder: Path, config: dict[str, Any], last: int) -> dict[str, Any]:
    """Groups of rollouts, histograms and reveal maps, from iterations spread evenly up to iteration `last`."""
    files = numbered(folder, "rollouts", last)
    chosen = evenly_spaced(files, FILES)
    size = config["num_generations"]
    groups: list[dict[str, Any]] = []
    histograms, maps, read = [], [], 0
    for number, (step, path) in enumerate(chosen):
        records = read_records(path)
        read += len(records)
        histograms.append({"step": step, **reward_histograms(records, config)})
        # The first and the last iteration get half of the rows; the others share the rest.
        share = ROWS // 2 // max(1, len(chosen) - 2)
        if number in (0, len(chosen) - 1):
            maps.append((step, records))
            share = ROWS // 4
        whole = [records[i : i + size] for i in range(0, len(records), size)]
        groups += [
            {"step": step, "rows": [table_row(r, config) for r in group]}
            for group in evenly_spaced(whole, max(1, share // size))
        ]
    kept = _within(groups, BUDGET)
    shown, every = sum(len(group["rows"]) for group in kept), config["prompts_per_iteration"] * size * len(files)
    if not files:
        note = "this run kept no rollouts (log_completions: false)"
    elif shown == read and len(chosen) == len(files):
        note = f"all {read:,} rollouts"
    else:
        iterations = f"{len(chosen)} of {len(files):,} iterations"
        note = f"{shown:,} of {every:,} rollouts: groups from {iterations}; the run's rollouts/ folder holds all"
    return {
        "groups": kept,
        "rollouts_note": note,
        "histograms": histograms,
        "rollout_maps": {"sampler": "rollouts", "panels": reveal_maps(maps)} if maps else None,
    }


def rollouts_to_play(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The player's data for a run without evaluation: the best rollout of each prompt of the newest iteration, after
    the best of an older iteration where the page has the same prompt."""
    older: dict[str, dict[str, Any]] = {}
    best = [{"step": g["step"], **max(g["rows"], key=lambda row: row["reward"])} for g in groups]
    for row in best:
        older.setdefault(row["prompt"], row)
    newest = [row for row in best if row["step"] == best[-1]["step"]][:PLAYED]
    pairs = [[older[row["prompt"]], row] if older[row["prompt"]] is not row else [row] for row in newest]
    return {"problems": {"rollouts": pairs} if pairs else {}, "maps": []}


def numbered(folder: Path, name: str, last: int) -> list[tuple[int, Path]]:
    """(N, path) of each `name/step-N.jsonl` with N <= last, ascending."""
    found = []
    for path in folder.glob(f"{name}/step-*.jsonl"):
        number = path.stem.removeprefix("step-")
        if number.isdecimal() and int(number) <= last:
            found.append((int(number), path))
    return sorted(found)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; of an episode's turns only the last, whose prompt is the conversation before it.
    Raises UserError with the number of the first line that is not JSON."""
    records = []
    # Not splitlines: it also splits at characters that a completion may hold, such as U+2028.
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}:{number}: not a JSON object ({error}); remove the line or the file") from error
    return [r for r, after in zip(records, [*records[1:], {}], strict=True) if after.get("turn", 1) == 1]


def _within(items: list[T], budget: int) -> list[T]:
    """As many items, evenly spread, as fit into `budget` characters of JSON."""
    size = len(json.dumps(items))
    return items if size <= budget else evenly_spaced(items, max(1, int(len(items) * budget / size * 0.9)))
