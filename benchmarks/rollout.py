"""Benchmark `rollout`: the plain sampling loop, each exact technique added in turn, and the approximations."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import deadline, measured, write_results
from benchmarks.modes import Mode, Result, block_modes, layout_modes, task_modes
from benchmarks.problem import BenchRolloutConfig, Problem, layout_problem, task_problem
from benchmarks.spent import Forwards, recorded
from benchmarks.table import markdown, rows_of_cells
from lfpo.base.environment import use_threads
from lfpo.base.measure import matmul_peak
from lfpo.config.files import replace_file
from lfpo.core.trajectory import Trajectory
from lfpo.models.layouts import LAYOUTS
from lfpo.plan.flops import rollout_flops

BLOCK_LENGTH = 8  # of a model that has none of its own


def run_bench_rollout(config: BenchRolloutConfig) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    use_threads(config.threads)
    problem = layout_problem(config) if config.model in LAYOUTS else task_problem(config)
    if config.causal_blocks and not problem.model.block_length:
        problem.model.block_length = config.block_length or BLOCK_LENGTH
    config = replace(config, block_length=config.block_length or problem.model.block_length or BLOCK_LENGTH)
    if problem.model.block_length:
        modes = block_modes(config, problem)
    else:
        modes = layout_modes(config, problem) if config.model in LAYOUTS else task_modes(config, problem)
    device = problem.model.device
    peak = matmul_peak(device, problem.model.dtype)
    runs = {mode: partial(_recorded, mode) for mode in modes}
    results, taken = measured(runs, device, config.repeats, deadline(config.budget))
    first = {mode.group: mode for mode in reversed(modes) if mode in results}
    exact: dict[str, Trajectory] = {}  # of each group: what its first row by the engine returned
    for mode, (result, _) in results.items():
        if isinstance(result, Trajectory):
            exact.setdefault(mode.group, result)
    rows: list[dict[str, Any]] = []
    for mode in modes:
        if mode not in results:
            rows.append({"group": mode.group, "mode": mode.label, **taken[mode]})
            continue
        base, (result, forwards) = first[mode.group], results[mode]
        trajectory = result if isinstance(result, Trajectory) else exact.get(mode.group)
        needed = None if trajectory is None else rollout_flops(mode.model, trajectory)
        spent, reference = forwards.flops(mode.model), results[base][0]
        row = describe(problem, mode, result, reference, taken[mode], peak, spent=spent, needed=needed)
        row |= {"speedup": taken[base]["seconds"] / row["seconds"], "model_tokens": sum(forwards.queries)}
        rows.append(row)
    path = write_results(config, "rollout", rows, matmul_peak=peak)
    _tables(rows, peak, path.with_suffix(".md"))
    return path


def _recorded(mode: Mode) -> tuple[Result, Forwards]:
    with recorded(mode.model) as forwards:
        return mode.run(), forwards


def describe(
    problem: Problem,
    mode: Mode,
    result: Result,
    reference: Result,
    taken: dict[str, Any],
    peak: float,
    *,
    spent: float,
    needed: float | None,
) -> dict[str, Any]:
    """The row of one mode. taken: its measured fields. peak: FLOP/s of the device.

    spent: matrix FLOPs of the forwards that it ran. needed: those of each row on its own, without padding and idle
        steps; None where no mode tells them.
    same: share of the reference's tokens, up to its first EOS, that are equal. share_of_peak: needed FLOP/s over
        `peak`; for the plain loop, spent FLOP/s.
    """
    tokens, expected = _tokens(result), _tokens(reference)
    lengths = _lengths(result, mode.model.eos_id)
    counted = torch.arange(tokens.shape[1], device=tokens.device) < _lengths(reference, mode.model.eos_id)[:, None]
    engine = isinstance(result, Trajectory)
    return {
        "group": mode.group,
        "mode": mode.label,
        **taken,
        "tokens_per_second": float(lengths.sum()) / taken["seconds"],
        "nfe": float(result.nfe.float().mean()) if isinstance(result, Trajectory) else float(result[1]),
        "same": float((tokens == expected)[counted].double().mean()),
        "accuracy": problem.score(tokens) if problem.score else None,
        "spent_over_needed": spent / needed if needed else None,
        "share_of_peak": (needed if engine and needed else spent) / taken["seconds"] / peak,
    }


def _tokens(result: Result) -> torch.Tensor:
    return result.tokens if isinstance(result, Trajectory) else result[0]


def _lengths(result: Result, eos_id: int) -> torch.Tensor:
    """Tokens of each row up to and including its first EOS [B]."""
    if isinstance(result, Trajectory):
        return result.lengths
    tokens_BC = result[0]
    ends = tokens_BC == eos_id
    return torch.where(ends.any(-1), ends.int().argmax(-1) + 1, tokens_BC.shape[1])


def _tables(rows: Sequence[dict[str, Any]], peak: float, path: Path) -> None:
    """Print the tables, and write them as Markdown."""

    def cells(row: dict[str, Any]) -> list[str]:
        memory, accuracy, ratio = row["peak_memory"], row["accuracy"], row["spent_over_needed"]
        return [
            row["mode"],
            f"{row['seconds']:.2f}",
            f"{row['speedup']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['nfe']:.1f}",
            f"{row['model_tokens']:,}",
            f"{row['same']:.1%}",
            "-" if accuracy is None else f"{accuracy:.1%}",
            "-" if memory is None else f"{memory / 2**20:,.0f}",
            "-" if ratio is None else f"{ratio:.2f}",
            f"{row['share_of_peak']:.0%}",
        ]

    columns = ("", "s", "x", "tok/s", "NFE", "run", "same", "correct", "MiB", "FLOPs", "util")
    caption = (
        "x: speed against the group's first row; run: tokens through the model, padding included; same: share of the "
        "first row's tokens that are equal; FLOPs: those spent over those needed without padding and idle steps; "
        f"util: share of a matmul peak of {peak / 1e9:,.0f} GFLOP/s"
    )
    text = markdown(columns, rows_of_cells(rows, "mode", cells, len(columns)))
    print(f"{text}\n{caption}")
    replace_file(path, text)
