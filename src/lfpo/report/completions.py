"""Which completions a page carries: those of the first and last evaluation, and a sample of the rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from lfpo.base.batching import evenly_spaced
from lfpo.base.errors import UserError
from lfpo.report.counts import reveal_maps, reward_histograms
from lfpo.report.replay import playable, table_row

T = TypeVar("T")

FILES = 24  # iterations whose rollouts are read for a page
ROWS = 240  # rollouts in its table
BUDGET = 3_000_000  # most characters of JSON for the table's rollouts, and as many for the evaluations' completions


def evaluation_samples(folder: Path, config: dict[str, Any], last: int) -> tuple[dict[str, Any], str]:
    """Kept completions of the first evaluation and of the last one up to iteration `last`, and a note.

    problems: sampler -> one list [first, last] a problem. maps: the reveal maps of each sampler. The note says what was
    left out, "" for nothing.
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
    """Rollouts for the table, histograms and reveal maps, from iterations spread evenly up to iteration `last`."""
    files = numbered(folder, "rollouts", last)
    chosen = evenly_spaced(files, FILES)
    rows: list[dict[str, Any]] = []
    histograms, maps, read = [], [], 0
    for number, (step, path) in enumerate(chosen):
        records = read_records(path)
        read += len(records)
        histograms.append({"step": step, **reward_histograms(records, config)})
        if number in (0, len(chosen) - 1):
            maps.append((step, records))
        # The last iteration gets half of the table; the other iterations share the rest.
        share = ROWS // 2 if number == len(chosen) - 1 else max(1, ROWS // 2 // max(1, len(chosen) - 1))
        rows += [{"step": step, **table_row(r, config)} for r in evenly_spaced(records, share)]
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
    """(N, path) of each `name/step-N.jsonl` with N <= last, ascending."""
    found = []
    for path in folder.glob(f"{name}/step-*.jsonl"):
        number = path.stem.removeprefix("step-")
        if number.isdecimal() and int(number) <= last:
            found.append((int(number), path))
    return sorted(found)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file. Raises UserError with the number of the first line that is not JSON."""
    records = []
    # Not splitlines: it also splits at characters that a completion may hold, such as U+2028.
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
    return items if size <= budget else evenly_spaced(items, max(1, int(len(items) * budget / size * 0.9)))
