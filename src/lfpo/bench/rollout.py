"""`lfpo bench rollout`: the plain sampling loop, each exact technique added in turn, and the approximations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lfpo.base.checks import at_least_one, not_negative
from lfpo.base.measure import matmul_peak
from lfpo.bench.figure import speedup_figure
from lfpo.bench.measure import measured, write_results
from lfpo.bench.plain import plain_rollout
from lfpo.bench.table import print_groups
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.layouts import LAYOUTS, random_model, random_prompts
from lfpo.prompts.encoding import decode_completions, encode_rows
from lfpo.prompts.tasks import get_task
from lfpo.rollout.denoise import rollout
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from lfpo.train.flops import forward_flops, rollout_flops

# Of a mode: what the engine returns, or tokens [B, C] and forwards of the plain loop.
Result = Trajectory | tuple[torch.Tensor, int]
Run = Callable[[], Result]


@dataclass
class BenchRolloutConfig:
    """Configuration of `lfpo bench rollout`.

    model: checkpoint folder, hub id, "embedded", or a layout with random weights (llada-8b, dream-7b). A random model
        clears no threshold and writes no EOS, so a layout is measured with fixed numbers of tokens a step only.
    layers: keep only the first layers of a layout, to try it where the whole does not fit.
    tasks: prompts come from these in turn. A layout has random tokens instead, 3/4 to all of prompt_length.
    n: number of prompts. generations: completions of each prompt.
    gen_length, block_length, prompt_length: tokens (gen_length None: the longest of the tasks; 256 for a layout).
    tokens_per_step: for layouts, how many tokens each step reveals.
    budget: minutes after which no mode is started; rows say what was not run (0: no limit).
    repeats: timings of each mode, in turn so that a slow moment of the machine falls on all; the table has the median.
    rollout_tokens, threads, dtype: as in training. output: folder for rollout.json and rollout.svg.
    """

    model: str = "embedded"
    layers: int | None = None
    tasks: list[str] = field(default_factory=lambda: ["words", "countdown", "expression"])
    n: int = 64
    generations: int = 1
    prompt_length: int = 256
    gen_length: int | None = None
    block_length: int = 8
    tokens_per_step: list[int] = field(default_factory=lambda: [1, 3])
    budget: float = 0.0
    repeats: int = 3
    rollout_tokens: int = 16384
    threads: int = 1
    dtype: str = "float32"
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        not_negative(self, "budget")
        at_least_one(self, "n", "generations", "prompt_length", "block_length", "repeats", "rollout_tokens")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype {self.dtype!r} must be float32 or bfloat16")
        if not self.tasks and self.model not in LAYOUTS:
            raise ValueError("'tasks' must name at least one task")


@dataclass(frozen=True)
class Mode:
    """One row of the table. group: rows are compared with the first row of their group."""

    group: str
    label: str
    run: Run


@dataclass(frozen=True)
class Problem:
    """What all modes work on. score: share of right completions, None for random weights."""

    model: MaskedDiffusionLM
    prompts: list[list[int]]
    gen_length: int
    score: Callable[[torch.Tensor], float] | None


def run_bench_rollout(config: BenchRolloutConfig, console: Console | None = None) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    if config.threads:
        torch.set_num_threads(config.threads)
    problem = layout_problem(config) if config.model in LAYOUTS else task_problem(config)
    modes = layout_modes(config, problem) if config.model in LAYOUTS else task_modes(config, problem)
    device = problem.model.device
    peak = matmul_peak(device, problem.model.dtype)
    runs = {mode: mode.run for mode in modes}
    results, taken = measured(runs, device, config.repeats, survive=True, minutes=config.budget)
    first = {mode.group: mode for mode in reversed(modes) if mode in results}
    rows: list[dict[str, Any]] = []
    for mode in modes:
        if mode not in results:
            rows.append({"group": mode.group, "mode": mode.label, **taken[mode]})
            continue
        base = first[mode.group]
        row = describe(problem, mode, results[mode], results[base], taken[mode], peak)
        rows.append({**row, "speedup": taken[base]["seconds"] / row["seconds"]})
    _print(rows, peak, console or Console())
    path = write_results(config, "rollout", rows, matmul_peak=peak)
    if any("failed" not in row for row in rows):
        speedup_figure([row for row in rows if "failed" not in row], path.with_suffix(".svg"))
    return path


def task_problem(config: BenchRolloutConfig) -> Problem:
    """Test problems of the tasks in turn, scored by the task that each one belongs to."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(config.model, dtype=getattr(torch, config.dtype), device=device)
    tokenizer = load_tokenizer(config.model)
    tasks = [get_task(name) for name in config.tasks]
    gen_length = config.gen_length or max(task.gen_length for task in tasks)
    owners = [tasks[i % len(tasks)] for i in range(config.n)]
    rows = [task.row("test", i // len(tasks)) for i, task in enumerate(owners)]
    prompts = encode_rows(rows, tokenizer, model, gen_length)

    def score(tokens_BC: torch.Tensor) -> float:
        texts = decode_completions(tokenizer, tokens_BC, model.eos_id)
        right = [owners[i // config.generations].correct(t, rows[i // config.generations]) for i, t in enumerate(texts)]
        return sum(right) / len(right)

    return Problem(model, [p for p in prompts for _ in range(config.generations)], gen_length, score)


def layout_problem(config: BenchRolloutConfig) -> Problem:
    """Random prompts for a published layout with random weights."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = random_model(config.model, config.layers, device, getattr(torch, config.dtype))
    prompts = random_prompts(config.n, config.prompt_length, model)
    return Problem(model, [p for p in prompts for _ in range(config.generations)], config.gen_length or 256, None)


def _engine(config: BenchRolloutConfig, problem: Problem, share_first: bool = True, **settings: Any) -> Run:
    sampler = SamplerConfig(gen_length=problem.gen_length, block_length=config.block_length, **settings)
    prompts, tokens = problem.prompts, config.rollout_tokens
    work = partial(rollout, problem.model, prompts, sampler, range(len(prompts)), rollout_tokens=tokens)
    return partial(work, share_first=share_first)


def _plain(config: BenchRolloutConfig, problem: Problem, steps: int, **switches: bool) -> Run:
    lengths: dict[str, Any] = {"gen_length": problem.gen_length, "block_length": config.block_length, "steps": steps}
    return partial(plain_rollout, problem.model, problem.prompts, **lengths, **switches)


def task_modes(config: BenchRolloutConfig, problem: Problem) -> list[Mode]:
    """Exact techniques at steps = gen_length and four times that, then approximations."""
    modes = []
    for factor in (1, 4):
        steps = factor * problem.gen_length
        group = f"exact, {steps} steps for {problem.gen_length} tokens"
        ladder: list[tuple[str, Run]] = [
            ("plain loop", _plain(config, problem, steps)),
            ("+ no forward for idle steps", _plain(config, problem, steps, skip_idle=True)),
            ("+ logits where masked", _plain(config, problem, steps, skip_idle=True, masked_logits=True)),
            ("+ own clocks, like lengths", _engine(config, problem, steps=steps, share_first=False)),
            ("+ shared first forward", _engine(config, problem, steps=steps)),
            ("+ EOS stop", _engine(config, problem, steps=steps, early_stop="eos")),
        ]
        if config.generations == 1:
            del ladder[4]  # no two rollouts have a first forward in common
        modes += [Mode(group, label, run) for label, run in ladder]
    group = "approximate, against the exact engine"
    approximations: dict[str, dict[str, Any]] = {
        "exact, EOS stop": {},
        "threshold 0.9": {"threshold": 0.9},
        "factor 1": {"factor": 1.0},
        "entropy bound 0.2": {"entropy_bound": 0.2},
        "prefix cache": {"cache": "prefix"},
        "prefix cache, refresh 4": {"cache": "prefix", "cache_refresh": 4},
        "dual cache": {"cache": "dual"},
        "dual cache, refresh 4": {"cache": "dual", "cache_refresh": 4},
        "threshold 0.9, dual cache": {"threshold": 0.9, "cache": "dual"},
    }
    for label, settings in approximations.items():
        modes.append(Mode(group, label, _engine(config, problem, early_stop="eos", **settings)))
    return modes


def layout_modes(config: BenchRolloutConfig, problem: Problem) -> list[Mode]:
    """The plain loop, the engine and both caches, at each number of tokens a step."""
    modes = []
    for tokens in config.tokens_per_step:
        blocks = problem.gen_length // config.block_length
        steps = max(1, config.block_length // tokens) * blocks
        group = f"{problem.gen_length} tokens in {steps} steps"
        modes += [
            Mode(group, "plain loop", _plain(config, problem, steps)),
            Mode(group, "engine, exact", _engine(config, problem, steps=steps)),
            Mode(group, "prefix cache", _engine(config, problem, steps=steps, cache="prefix")),
            Mode(group, "dual cache", _engine(config, problem, steps=steps, cache="dual")),
        ]
    return modes


def describe(
    problem: Problem, mode: Mode, result: Result, reference: Result, taken: dict[str, Any], peak: float
) -> dict[str, Any]:
    """The row of one mode. taken: its measured fields. peak: FLOP/s of the device.

    same: share of the reference's tokens, up to its first EOS, that are equal. share_of_peak: model FLOP/s over `peak`.
    """
    model = problem.model
    tokens, expected = _tokens(result), _tokens(reference)
    lengths = _lengths(tokens, model.eos_id)
    counted = torch.arange(tokens.shape[1], device=tokens.device) < _lengths(expected, model.eos_id)[:, None]
    if isinstance(result, Trajectory):
        nfe, flops = float(result.nfe.float().mean()), rollout_flops(model, result)
    else:
        size, longest = len(problem.prompts), max(len(p) for p in problem.prompts) + problem.gen_length
        nfe = float(result[1])
        flops = nfe * forward_flops(model, torch.full((size,), longest), 0)
    return {
        "group": mode.group,
        "mode": mode.label,
        **taken,
        "tokens_per_second": float(lengths.sum()) / taken["seconds"],
        "nfe": nfe,
        "same": float((tokens == expected)[counted].double().mean()),
        "accuracy": problem.score(tokens) if problem.score else None,
        "share_of_peak": flops / taken["seconds"] / peak,
    }


def _tokens(result: Result) -> torch.Tensor:
    return result.tokens if isinstance(result, Trajectory) else result[0]


def _lengths(tokens_BC: torch.Tensor, eos_id: int) -> torch.Tensor:
    """Tokens of each row up to and including its first EOS [B]."""
    ends = tokens_BC == eos_id
    return torch.where(ends.any(-1), ends.int().argmax(-1) + 1, tokens_BC.shape[1])


def _print(rows: Sequence[dict[str, Any]], peak: float, console: Console) -> None:
    def cells(row: dict[str, Any]) -> list[str]:
        if "failed" in row:
            return [f"{row['mode']}: {row['failed']}", *["-"] * 8]
        memory, accuracy = row["peak_memory"], row["accuracy"]
        return [
            row["mode"],
            f"{row['seconds']:.2f}",
            f"{row['speedup']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['nfe']:.1f}",
            f"{row['same']:.1%}",
            "-" if accuracy is None else f"{accuracy:.1%}",
            "-" if memory is None else f"{memory / 2**20:,.0f}",
            f"{row['share_of_peak']:.0%}",
        ]

    columns = ("", "s", "x", "tok/s", "NFE", "same", "correct", "MiB", "util")
    caption = (
        "x: speed against the group's first row; same: share of its tokens that are equal; "
        f"util: share of a matmul peak of {peak / 1e9:,.0f} GFLOP/s"
    )
    print_groups(console, "Rollout", columns, [(row["group"], cells(row)) for row in rows], caption)
