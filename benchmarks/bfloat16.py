"""Benchmark `bfloat16`: fine-tuning steps and LFPO iterations in float32 and under bfloat16 autocast, in turn."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import measured, write_results
from benchmarks.table import markdown
from lfpo.base.environment import use_threads
from lfpo.config.build import build
from lfpo.config.checks import Count, CountOrZero, check_ranges
from lfpo.config.files import replace_file
from lfpo.config.sft import SFTConfig
from lfpo.config.tasks import TaskName
from lfpo.config.train import LFPOConfig
from lfpo.models.autocast import bfloat16_gain
from lfpo.runs.context import Context
from lfpo.train.rl import LFPOTrainer
from lfpo.train.sft import SFTTrainer

PRECISIONS = {"float32": False, "bfloat16": True}


@dataclass
class BenchBfloat16Config:
    """Configuration of `python -m benchmarks bfloat16`.

    models: folders or names. Each is measured on its own; both precisions start from the same weights.
    task: gives prompts and demonstrations. batch_size: examples of a fine-tuning step. prompts, rollouts, steps: of an
        LFPO iteration: prompts, rollouts of each, and forwards of a rollout, so many in both precisions.
    update_tokens: budget of a pass. repeats: timings of each case, in turn, after a first that is not counted.
        Compared is the least CPU time. threads: CPU threads (0: torch's default). output: folder for bfloat16.json
        and bfloat16.md.
    """

    models: list[str] = field(default_factory=lambda: ["embedded"])
    task: TaskName = "words"
    batch_size: Count = 16
    prompts: Count = 2
    rollouts: Count = 8
    steps: Count = 6
    update_tokens: Count = 2048
    repeats: Count = 3
    threads: CountOrZero = 1
    output: str = "runs/bench"

    def __post_init__(self) -> None:
        check_ranges(self)


def run_bench_bfloat16(config: BenchBfloat16Config) -> Path:
    """Measure, print and write; returns the path of the JSON."""
    use_threads(config.threads)
    rows = []
    for model in config.models:
        for group, make in (("fine-tuning step", fine_tuning), ("LFPO iteration", iterating)):
            cpu: dict[str, list[float]] = {name: [] for name in PRECISIONS}
            trainers = {name: timed(make(config, model, on), cpu[name]) for name, on in PRECISIONS.items()}
            losses, taken = measured(trainers, torch.device("cpu"), config.repeats)
            least = {name: min(seconds) for name, seconds in cpu.items()}
            rows += [
                {"model": model, "case": f"{group}, {name}", "loss": losses[name], "cpu_seconds": least[name], **row}
                | {"gain": least["float32"] / least[name]}
                for name, row in taken.items()
            ]
            del trainers  # before the next pair is made
    path = write_results(config, "bfloat16", rows, product_gain=bfloat16_gain())
    columns = ("", "CPU s", "times as fast", "s", "loss")
    cells = [
        (r["model"], [r["case"], *(f"{r[key]:.2f}" for key in ("cpu_seconds", "gain", "seconds")), f"{r['loss']:.4f}"])
        for r in rows
    ]
    text = markdown(columns, cells)
    text += f"\nOne layer's product: {bfloat16_gain():.1f} times as fast.\n"
    print(text)
    replace_file(path.with_suffix(".md"), text)
    return path


def timed(work: Callable[[], float], taken: list[float]) -> Callable[[], float]:
    """The same work, which adds the CPU seconds of all threads to `taken`: on a busy machine they say more than wall
    time."""

    def run() -> float:
        begun = time.process_time()
        result = work()
        taken.append(time.process_time() - begun)
        return result

    return run


def fine_tuning(config: BenchBfloat16Config, model: str, autocast: bool) -> Callable[[], float]:
    """Runs the next step; returns its loss."""
    keys = {"tasks": {config.task: 1.0}, "steps": 1000, "batch_size": config.batch_size, "logging_steps": 1}
    keys |= {"output_dir": "unused", "model": model, "learning_rate": 1e-5, "bf16": False, "threads": config.threads}
    trainer = SFTTrainer(build(SFTConfig, {**keys, "update_tokens": config.update_tokens}))
    trainer.model.autocast = autocast
    step = iter(range(1000))
    return lambda: trainer.run_iteration(next(step), Context())["loss"]


def iterating(config: BenchBfloat16Config, model: str, autocast: bool) -> Callable[[], float]:
    """Runs the next iteration; returns its loss."""
    keys: dict[str, Any] = {"output_dir": "unused", "model": model, "task": config.task, "bf16": False, "eval_steps": 0}
    keys |= {"prompts_per_iteration": config.prompts, "num_generations": config.rollouts, "threads": config.threads}
    keys |= {"sampler": {"temperature": 1.0, "steps": config.steps}, "update_tokens": config.update_tokens}
    keys |= {"learning_rate": 1e-6, "log_completions": False, "optimizer_steps_per_iteration": 1}
    trainer = LFPOTrainer(args=build(LFPOConfig, keys), reward_funcs=partial(spaced, config.rollouts))
    for policy in trainer.policies.values():
        policy.autocast = autocast
    step = iter(range(1000))
    return lambda: trainer.run_iteration(next(step))["loss"]


def spaced(number: int, prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Rewards evenly spaced from 0 to 1 in each group, so that every group has a signal."""
    return [i % number / (number - 1) for i in range(len(completions))]
