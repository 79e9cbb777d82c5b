"""One task of an evaluation: its problems as the model gets them, and the settings that decide the result."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.environment import versions
from lfpo.base.errors import UserError
from lfpo.eval.choices import Options, options_of, pairs_of
from lfpo.eval.fewshot import asked, examples, stop_text
from lfpo.eval.settings import EvalConfig
from lfpo.eval.store import data_sha256
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.encoding import encode_rows
from lfpo.prompts.tasks import DataTask, Row, Task, get_task
from lfpo.rollout.sampler import SamplerConfig


@dataclass(frozen=True)
class Job:
    """One task of an evaluation.

    rows: the problems for the grader. asked: the same with the prompts that the model gets. options: used instead for
    scoring by likelihood. stop: text that ends a completion for grading. settings: everything that decides the result.
    path: file of the result.
    """

    task: Task | DataTask
    rows: list[Row]
    asked: list[Row]
    options: list[Options]
    sampler: SamplerConfig
    stop: str | None
    settings: dict[str, Any]
    path: Path | None


def prepare(name: str, config: EvalConfig, weights: str) -> Job:
    """The job of one task. weights: SHA-256 of the model."""
    task = get_task(name)
    rows = task.test_rows(config.n)
    solved = examples(task, config.num_fewshot)
    decided: dict[str, Any] = {"task": task.name, "scoring": config.scoring, "model_sha256": weights}
    options: list[Options] = []
    sampler, stop, asked_rows = config.sampler, None, rows
    if config.scoring == "likelihood":
        options = options_of(task, rows, [row for row, _ in solved])
        decided |= {"data_sha256": data_sha256([asdict(o) for o in options]), "likelihood": asdict(config.likelihood)}
    else:
        prompt_format = config.prompt_format or "chat"
        try:
            sampler = config.sampler.for_length(task.gen_length)
        except ValueError as error:
            raise UserError(f"lfpo eval: task {task.name!r}: sampler: {error}") from error
        asked_rows = asked(rows, solved, prompt_format)
        stop = stop_text(rows, solved, prompt_format)
        decided |= {"data_sha256": data_sha256(asked_rows), "prompt_format": prompt_format, "stop": stop}
        decided |= {"n_samples": config.n_samples, "sampler": asdict(sampler)}
    device = torch.cuda.get_device_name(distributed.device()) if torch.cuda.is_available() else "cpu"
    decided |= {"num_fewshot": config.num_fewshot, "seed": config.seed, "dtype": config.dtype, "device": device}
    decided["versions"] = {k: v for k, v in versions().items() if k != "python"}
    return Job(task, rows, asked_rows, options, sampler, stop, decided, result_path(config, task.name))


def result_path(config: EvalConfig, task: str) -> Path | None:
    """The file of a task's result, None without `config.output`."""
    if config.output is None:
        return None
    path = Path(config.output).expanduser()
    if path.suffix == ".json":
        return path
    name = re.sub(r"[^\w.-]+", "-", task)
    return path / f"{name}{'-likelihood' if config.scoring == 'likelihood' else ''}.json"


def check_lengths(job: Job, model: MaskedDiffusionLM, tokenizer: Any, seed: int) -> None:
    """Raise UserError for a problem that does not fit the model's context."""
    if job.options:
        for options in job.options:
            pairs_of(options, tokenizer, model, seed)
    else:
        encode_rows(job.asked, tokenizer, model, job.sampler.gen_length or 0)
