"""`lfpo eval`: one model and one protocol on any number of tasks; prints a table and writes one JSON file a task."""

import functools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from lfpo.base import distributed
from lfpo.base.environment import describe_environment, keep_freed_memory, use_threads, versions
from lfpo.config.errors import UserError
from lfpo.config.eval import EvalConfig
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core import collectives
from lfpo.core.encoding import encode_rows
from lfpo.core.messages import prefill
from lfpo.core.scoring import without_prefill
from lfpo.eval.estimates import scores
from lfpo.eval.evaluate import Answer, judge_answers, sample_answers
from lfpo.eval.store import (
    Record,
    check_writable,
    content_sha256,
    data_sha256,
    file_sha256,
    find,
    write_records,
    write_result,
)
from lfpo.eval.terminal import open_console, progress, show
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.loading import resolve, trained_block_length, without_weights
from lfpo.prompts.sources import PromptSource, kept_columns, make_source
from lfpo.prompts.tasks import Row
from lfpo.rollout.sampling import as_it_is
from lfpo.rollout.variants import check_context


@dataclass(frozen=True)
class Job:
    """One task, or data set, of an evaluation.

    source: its held-out rows, for the grader, and what judges completions. prompted: the rows with the prompts that the
    model gets. settings: everything that decides the result. path: file of the result.
    """

    source: PromptSource
    prompted: list[Row]
    sampler: Sampler
    settings: Json
    path: Path | None


def run_each(configs: Sequence[EvalConfig]) -> list[Json]:
    """Evaluate under each protocol in turn, print, and write to its `output` if that is set; returns one result a task.

    Each rank takes its share of the problems; rank 0 prints and writes. All protocols are checked before the first
    begins. Raises UserError for wrong settings or files.
    """
    distributed.start()
    console = open_console(quiet=collectives.rank() != 0)
    digest = functools.cache(file_sha256)  # protocols share a model
    planned = [(config, plan(config, console, digest)) for config in configs]
    paths = [job.path for _, jobs in planned for job, _ in jobs if job.path is not None]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{twice[0]}: two tasks or protocols would write this file; evaluate them with two outputs")
    missing = [job.path for _, jobs in planned for job, result in jobs if result is None]
    collectives.on_every_rank(lambda: check_writable(missing))
    results = [result for config, jobs in planned for result in run_jobs(config, jobs, console)]
    if len(configs) > 1:
        first = results[0]
        show([{**r, "task": f"{r['task']}, {r['protocol']}"} for r in results], console)
        software = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
        console.print(f"{first['dtype']}, {first['device']}, {software}, seed {first['seed']}", highlight=False)
    return results


def plan(config: EvalConfig, console: Console, digest: Callable[[Path], str]) -> list[tuple[Job, Json | None]]:
    """The jobs of an evaluation, each with its result if that is there already. Loads no weights, writes and
    deletes nothing, and raises UserError for what would stop a job later. A collective."""
    # Without output nothing is compared, so no file is read for it.
    hashed = config.output is not None and collectives.rank() == 0
    weights = collectives.on_every_rank(lambda: digest(resolve(config.model)) if hashed else None)[0]
    jobs = [prepare(one, weights, trained_block_length(config.model)) for one in config.each()]
    wanted = [] if config.overwrite else jobs
    found = collectives.on_every_rank(lambda: [find(job.path, job.settings) for job in wanted])[0]
    stored = found or [None] * len(jobs)
    for job, result in zip(jobs, stored, strict=True):
        if result is not None:
            console.print(f"{job.source.name}: already evaluated with these settings, see {job.path}", highlight=False)
    if pending := [job for job, result in zip(jobs, stored, strict=True) if result is None]:
        for job in pending:
            nothing = {"completion_ids": [[]], "forwards": [1], "reveal_step": [[]]}
            job.source.judge(job.source.eval_rows[:1], [""], nothing)  # says what the grader lacks
        model, tokenizer = without_weights(config.model), load_tokenizer(config.model)
        for job in pending:
            protocol = f"protocol {config.protocol!r}: " if config.protocol else ""
            check_context(job.sampler, model, f"lfpo eval: {protocol}task {job.source.name!r}: sampler")
            places = [f"{protocol}{job.source.place('eval', i)}" for i in range(len(job.prompted))]
            encode_rows(job.prompted, tokenizer, model, job.sampler.gen_length, places)
    return list(zip(jobs, stored, strict=True))


def run_jobs(config: EvalConfig, jobs: Sequence[tuple[Job, Json | None]], console: Console) -> list[Json]:
    """Do the jobs that have no result yet; prints and returns the results of all."""
    results = [result for _, result in jobs if result is not None]
    if len(results) < len(jobs):
        use_threads(config.threads)
        model = load_model(config.model, dtype=getattr(torch, config.dtype), device=collectives.device())
        tokenizer = load_tokenizer(config.model)
        distributed.begin_work()
        keep_freed_memory(sum(p.numel() for p in model.parameters()))
        results = [
            sample_and_grade(job, config, model, tokenizer, console) if result is None else result
            for job, result in jobs
        ]
    show(results, console)
    return results


def prepare(config: EvalConfig, weights: str | None, block_length: int | None) -> Job:
    """The job of one task or data set. weights: SHA-256 of the model. block_length: the model's."""
    source = make_source(config, seed=config.seed, n_eval=config.n, splits=["eval"])
    if not source.eval_rows:
        raise UserError(f"lfpo eval: {source.name!r} has no rows to measure on")
    rows, where = list(source.eval_rows), f"lfpo eval: task {source.name!r}: sampler"
    sampler = config.sampler.fitted(where, source.gen_length, block_length)
    prompted = rows if config.prompt_format == "chat" else [{**row, "prompt": as_text(row["prompt"])} for row in rows]
    settings = {
        "task": source.name,
        "n": len(rows),
        "model_sha256": weights,
        "data_sha256": data_sha256(prompted),
        "prompt_format": config.prompt_format,
        "n_samples": config.n_samples,
        "sampler": asdict(sampler),
        "seed": config.seed,
        "dtype": config.dtype,
        "device": torch.cuda.get_device_name(collectives.device()) if torch.cuda.is_available() else "cpu",
        "versions": {k: v for k, v in versions().items() if k != "python"},
    }
    if source.files:  # the user's own, whose functions may change under their names
        settings["task_sha256"] = " ".join(content_sha256(file) for file in source.files)
    if config.task is None:
        settings["correct"], settings["reward_funcs"] = config.correct, config.reward_funcs
        settings["reward_weights"] = config.reward_weights
    path = None if config.output is None else user_path(config.output)
    if path is not None and path.suffix != ".json":
        path /= re.sub(r"[^\w.-]+", "-", source.name) + ".json"
    return Job(source, prompted, sampler, settings, path)


def as_text(prompt: str | list[dict[str, str]]) -> str:
    """A prompt as plain text. Messages become paragraphs, followed by a line break; the beginning of an answer is left
    open."""
    if isinstance(prompt, str):
        return prompt
    paragraphs = "\n\n".join(str(m.get("content") or "") for m in without_prefill(prompt))
    return f"{paragraphs}\n{prefill(prompt)}"


def sample_and_grade(
    job: Job, config: EvalConfig, model: MaskedDiffusionLM, tokenizer: object, console: Console
) -> Record:
    """Sample the completions and grade them; writes and returns the result. Completions are written before they are
    graded, so that a grader that fails costs none."""
    source, rank, world, started = job.source, collectives.rank(), collectives.world(), time.perf_counter()
    wanted = [(i, j) for i in range(len(job.prompted)) for j in range(config.n_samples)]
    pairs = [wanted[i] for i in collectives.own_indices(len(wanted))]
    title = source.name if world == 1 else f"{source.name} (rank {rank} of {world})"
    with progress(title, len(pairs), "completions", console) as state:
        engine = as_it_is(model, config.rollout_tokens)
        engine.forwarded = state.forward
        own, trajectory = sample_answers(
            *(engine, model, tokenizer, job.prompted, pairs, job.sampler),
            seed=config.seed,
            finished=lambda answers: state.advance(len(answers)),
        )
    seconds = max(collectives.gather(time.perf_counter() - started))
    answers = [answer for part in collectives.gather(own) for answer in part]
    rows = [source.eval_rows[a.problem] for a in answers]
    records = [{**asdict(a), "prompt": job.prompted[a.problem]["prompt"]} for a in answers]

    def write(**files: list[Record]) -> None:
        if (path := job.path) is not None:
            collectives.on_every_rank(lambda: write_records(path, files) if rank == 0 else None)

    write(completions=records)
    if len(answers) > 1:
        console.print(f"{source.name}: grading {len(answers)} completions", highlight=False)
    judged = judge_answers(source.judge, source.eval_rows, own, trajectory)
    for function, why in judged.failed.items():
        raise UserError(
            f"{source.name}: {function!r} failed: {why}; the completions are kept, so mend it and run again"
        )
    result = result_of(job, config, answers, judged.values, seconds)
    key = "reward" if source.verify is None else "correct"
    for record, row, value in zip(records, rows, judged.values, strict=True):
        record |= {"columns": kept_columns(row), key: value}
    write(completions=records)
    if (line := source.sample_record) is not None:
        texts = zip(rows, answers, strict=True)
        write(samples=[line(row, prefill(row["prompt"]) + answer.completion) for row, answer in texts])
    if (path := job.path) is not None:
        collectives.on_every_rank(lambda: write_result(path, result) if rank == 0 else None)
    return result


def result_of(
    job: Job, config: EvalConfig, answers: Sequence[Answer], values: Sequence[bool | float | None], seconds: float
) -> Record:
    """The numbers of a task, and what decides them. values: of each answer. seconds: of sampling."""
    found, count, tokens = scores([a.problem for a in answers], values), len(answers), sum(a.length for a in answers)
    return {
        "task": job.source.name,
        "model": config.model,
        job.source.measure: found.pop("mean"),
        **found,
        "mean_steps": sum(a.steps for a in answers) / count,
        "mean_nfe": sum(a.nfe for a in answers) / count,
        "mean_length": tokens / count,
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "seconds_per_problem": seconds / count,
        "protocol": config.protocol,
        **job.settings,
        "rollout_tokens": config.rollout_tokens,
        "processes": collectives.world(),
        "environment": describe_environment(),
        "python": versions()["python"],
    }
