"""`lfpo eval`: one model and one protocol on any number of tasks; prints a table and writes one JSON file a task."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console

from lfpo.base import distributed
from lfpo.base.errors import UserError
from lfpo.eval.job import check_lengths, prepare
from lfpo.eval.scoring import compare_likelihoods, sample_and_grade
from lfpo.eval.settings import DTYPES, EvalConfig
from lfpo.eval.store import file_sha256, find
from lfpo.eval.table import open_console, show
from lfpo.models import load_model, load_tokenizer
from lfpo.models.loading import resolve


def run_eval(config: EvalConfig, console: Console | None = None) -> list[dict[str, Any]]:
    """Evaluate, print, and write to `config.output` if it is set; returns one result a task.

    Each rank takes its share of the problems; rank 0 prints and writes. Raises UserError for wrong settings or files.
    """
    distributed.start()
    rank, world = distributed.rank(), distributed.world()
    console = console or open_console(quiet=rank != 0)
    if config.threads:
        torch.set_num_threads(config.threads)
    weights = distributed.together(lambda: file_sha256(resolve(config.model)) if rank == 0 else "")[0]
    jobs = [prepare(name, config, weights) for name in config.task_names]
    if len({job.path for job in jobs}) < len(jobs) and config.output:
        raise UserError("two of the tasks would write the same file; evaluate them with different outputs")
    finished = distributed.together(lambda: [find(job.path, job.settings, config.overwrite) for job in jobs])[0]
    model = load_model(config.model, dtype=DTYPES[config.dtype], device=distributed.device())
    tokenizer = load_tokenizer(config.model)
    for job in jobs:  # before hours are spent on the first one
        check_lengths(job, model, tokenizer, config.seed)
    distributed.at_work = world > 1
    results = []
    for job, found in zip(jobs, finished, strict=True):
        if found is not None:
            console.print(f"{job.task.name}: already evaluated with these settings, see {job.path}", highlight=False)
            results.append(found)
            continue
        evaluate_job = compare_likelihoods if config.scoring == "likelihood" else sample_and_grade
        results.append(evaluate_job(job, config, model, tokenizer, console))
    show(results, console)
    return results
