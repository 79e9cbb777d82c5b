"""`lfpo eval`: one model and one protocol on any number of tasks; prints a table and writes one JSON file a task."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lfpo.base import distributed
from lfpo.base.environment import use_threads, versions
from lfpo.base.errors import UserError
from lfpo.eval.choices import Options, options_of, pairs_of
from lfpo.eval.fewshot import asked, examples, stop_text
from lfpo.eval.scoring import Job, compare_likelihoods, sample_and_grade
from lfpo.eval.settings import EvalConfig
from lfpo.eval.store import data_sha256, file_sha256, find
from lfpo.eval.table import open_console, show
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.loading import resolve, trained_block_length
from lfpo.prompts.encoding import encode_rows
from lfpo.prompts.tasks import get_task


def run_eval(config: EvalConfig, console: Console | None = None) -> list[dict[str, Any]]:
    """Evaluate, print, and write to `config.output` if it is set; returns one result a task.

    Each rank takes its share of the problems; rank 0 prints and writes. Raises UserError for wrong settings or files.
    """
    distributed.start()
    rank = distributed.rank()
    console = console or open_console(quiet=rank != 0)
    use_threads(config.threads)
    weights = distributed.together(lambda: file_sha256(resolve(config.model)) if rank == 0 else "")[0]
    block_length = trained_block_length(config.model)
    jobs = [prepare(name, config, weights, block_length) for name in config.task_names]
    if len({job.path for job in jobs}) < len(jobs) and config.output:
        raise UserError("two of the tasks would write the same file; evaluate them with different outputs")
    finished = distributed.together(lambda: [find(job.path, job.settings, config.overwrite) for job in jobs])[0]
    model = load_model(config.model, dtype=getattr(torch, config.dtype), device=distributed.device())
    tokenizer = load_tokenizer(config.model)
    for job in jobs:  # before hours are spent on the first one
        check_lengths(job, model, tokenizer, config.seed)
    distributed.begin_work()
    results = []
    for job, found in zip(jobs, finished, strict=True):
        if found is not None:
            console.print(f"{job.task.name}: already evaluated with these settings, see {job.path}", highlight=False)
            results.append(found)
            continue
        evaluate_job = compare_likelihoods if config.scoring == "likelihood" else sample_and_grade
        results.append(evaluate_job(job, model, tokenizer, console))
    show(results, console)
    return results


def prepare(name: str, config: EvalConfig, weights: str, block_length: int | None = None) -> Job:
    """The job of one task. weights: SHA-256 of the model. block_length: the model's."""
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
            sampler = config.sampler.for_length(task.gen_length, block_length)
        except ValueError as error:
            raise UserError(f"lfpo eval: task {task.name!r}: sampler: {error}") from error
        asked_rows = asked(rows, solved, prompt_format)
        stop = stop_text(rows, solved, prompt_format)
        decided |= {"data_sha256": data_sha256(asked_rows), "prompt_format": prompt_format, "stop": stop}
        decided |= {"n_samples": config.n_samples, "sampler": asdict(sampler)}
    device = torch.cuda.get_device_name(distributed.device()) if torch.cuda.is_available() else "cpu"
    decided |= {"num_fewshot": config.num_fewshot, "seed": config.seed, "dtype": config.dtype, "device": device}
    decided["versions"] = {k: v for k, v in versions().items() if k != "python"}
    return Job(config, task, rows, asked_rows, options, sampler, stop, decided, result_path(config, task.name))


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
