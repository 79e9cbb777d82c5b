"""`lfpo eval`: one model, one task, one sampler; a table on the screen and a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ..errors import UserError
from ..models import load_model, load_tokenizer
from ..run import describe_environment, versions
from ..sampler import SamplerConfig
from ..tasks import TASKS, get_task
from .evaluate import EvalResult, evaluate

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class EvalConfig:
    """Configuration of `lfpo eval`.

    model: checkpoint folder, hub id, or "embedded". task: a task's name or dotted path, or "all" embedded ones.
    n: problems of the test split (None: the standard number, or all of a data set).
    n_samples: completions a problem; more than 1 also gives pass@k.
    sampler: how completions are denoised (--sampler.temperature 1, --sampler.threshold 0.9, ...).
    output: file for the JSON result (with task "all", one list of results). Printed only when left out.
    """

    task: str
    model: str = "embedded"
    n: int | None = None
    n_samples: int = 1
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    seed: int = 0
    dtype: str = "float32"
    rollout_tokens: int = 16384
    threads: int = 0
    output: str | None = None

    def __post_init__(self) -> None:
        if (self.n is not None and self.n < 1) or self.n_samples < 1:
            raise ValueError("'n' and 'n_samples' must be at least 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} must be one of {', '.join(DTYPES)}")


def run_eval(config: EvalConfig) -> list[dict[str, Any]]:
    """Evaluate and print; returns (and writes, if asked) one result object a task."""
    if config.threads:
        torch.set_num_threads(config.threads)
    names = list(TASKS) if config.task == "all" else [config.task]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(config.model, dtype=DTYPES[config.dtype], device=device)
    tokenizer = load_tokenizer(config.model)
    results = []
    for name in names:
        task = get_task(name)
        try:
            sampler = config.sampler.for_length(task.gen_length)
        except ValueError as error:
            raise UserError(f"lfpo eval: sampler: {error}") from error
        rows = task.test_rows(config.n)
        result = evaluate(
            model,
            tokenizer,
            rows,
            task.correct,
            sampler,
            seed=config.seed,
            n_samples=config.n_samples,
            rollout_tokens=config.rollout_tokens,
        )
        results.append(result_json(result, task.name, config, sampler, str(model.device)))
        _print_row(results[-1])
    if config.output:
        path = Path(config.output)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(results if config.task == "all" else results[0], indent=2) + "\n")
        except OSError as error:
            raise UserError(f"{path}: could not be written ({error.strerror or error})") from error
    return results


def result_json(
    result: EvalResult, task: str, config: EvalConfig, sampler: SamplerConfig, device: str
) -> dict[str, Any]:
    """Everything needed to reproduce a number, beside the number."""
    return {
        "task": task,
        "model": config.model,
        **result.summary(),
        "sampler": asdict(sampler),
        "seed": config.seed,
        "dtype": config.dtype,
        "device": device,
        "environment": describe_environment(),
        "versions": versions(),
    }


def _print_row(r: dict[str, Any]) -> None:
    table = Table(title=f"{r['model']} on {r['task']}, {r['n']} problems", title_justify="left")
    low, high = r["interval"]
    table.add_column("accuracy (95 %)")
    values = [f"{100 * r['accuracy']:.1f}% ({100 * low:.1f} to {100 * high:.1f})"]
    if r["pass_at_k"]:
        k = max(r["pass_at_k"])
        table.add_column(f"pass@{k}")
        values.append(f"{100 * r['pass_at_k'][k]:.1f}%")
    for name, text in (
        ("steps", f"{r['mean_steps']:.1f}"),
        ("NFE", f"{r['mean_nfe']:.1f}"),
        ("length", f"{r['mean_length']:.1f}"),
        ("tokens/s", f"{r['tokens_per_second']:.0f}"),
    ):
        table.add_column(name, justify="right")
        values.append(text)
    table.add_row(*values)
    Console().print(table)
