"""`lfpo eval`: one model and one protocol on any number of tasks; prints a table and writes one JSON file a task."""

import functools
import re
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
from lfpo.config.sampler import SamplerConfig
from lfpo.core import collectives
from lfpo.core.encoding import encode_rows
from lfpo.core.messages import prefill
from lfpo.core.scoring import copied, without_prefill
from lfpo.eval.estimates import scores
from lfpo.eval.evaluate import Answer, generate, grade
from lfpo.eval.store import (
    Journal,
    Record,
    check_writable,
    content_sha256,
    data_sha256,
    delete,
    file_sha256,
    find,
    pair_of,
    partial_files,
    write_result,
)
from lfpo.eval.terminal import open_console, progress, show
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.loading import resolve, trained_block_length, without_weights
from lfpo.models.tensor_files import check_memory
from lfpo.prompts.sources import row_place
from lfpo.prompts.tasks import DataTask, Row, Task, get_task, source_file
from lfpo.rollout.sampling import as_it_is
from lfpo.rollout.variants import check_context


@dataclass(frozen=True)
class Job:
    """One task of an evaluation.

    rows: the problems for the grader. prompted: the same with the prompts that the model gets. settings: everything
    that decides the result. path: file of the result.
    """

    task: Task | DataTask
    rows: list[Row]
    prompted: list[Row]
    sampler: SamplerConfig
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
    collectives.together(lambda: check_writable(missing))
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
    weights = collectives.together(lambda: digest(resolve(config.model)) if hashed else None)[0]
    jobs = [prepare(name, config, weights, trained_block_length(config.model)) for name in config.task_names]
    wanted = [] if config.overwrite else jobs
    stored = collectives.together(lambda: [find(job.path, job.settings) for job in wanted])[0] or [None] * len(jobs)
    for job, result in zip(jobs, stored, strict=True):
        if result is not None:
            console.print(f"{job.task.name}: already evaluated with these settings, see {job.path}", highlight=False)
    if pending := [job for job, result in zip(jobs, stored, strict=True) if result is None]:
        for job in pending:
            job.task.correct_all(copied(job.rows[:1]), [""] * len(job.rows[:1]))  # says what the grader lacks
        model, tokenizer = without_weights(config.model), load_tokenizer(config.model)
        for job in pending:
            protocol = f"protocol {config.protocol!r}: " if config.protocol else ""
            check_context(job.sampler, model, f"lfpo eval: {protocol}task {job.task.name!r}: sampler")
            places = [f"{protocol}{row_place(job.task, 'eval', i)}" for i in range(len(job.rows))]
            encode_rows(job.prompted, tokenizer, model, job.sampler.gen_length or 0, places)
        dtype = getattr(torch, config.dtype)
        collectives.together(lambda: check_memory(resolve(config.model), dtype, collectives.device()))
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


def prepare(name: str, config: EvalConfig, weights: str | None, block_length: int | None) -> Job:
    """The job of one task. weights: SHA-256 of the model. block_length: the model's."""
    task = get_task(name)
    rows = task.test_rows(config.n)
    sampler = config.sampler.fitted(f"lfpo eval: task {task.name!r}: sampler", task.gen_length, block_length)
    prompted = rows if config.prompt_format == "chat" else [{**row, "prompt": as_text(row["prompt"])} for row in rows]
    settings = {
        "task": task.name,
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
    if (source := source_file(name)) is not None:  # of a user's task, whose verifier may change under its name
        settings["task_sha256"] = content_sha256(source)
    path = None if config.output is None else user_path(config.output)
    if path is not None and path.suffix != ".json":
        path /= re.sub(r"[^\w.-]+", "-", task.name) + ".json"
    return Job(task, rows, prompted, sampler, settings, path)


def as_text(prompt: str | list[dict[str, str]]) -> str:
    """A prompt as plain text. Messages become paragraphs, followed by a line break; the beginning of an answer is left
    open."""
    if isinstance(prompt, str):
        return prompt
    paragraphs = "\n\n".join(m["content"] for m in without_prefill(prompt))
    return f"{paragraphs}\n{prefill(prompt)}"


def sample_and_grade(
    job: Job, config: EvalConfig, model: MaskedDiffusionLM, tokenizer: object, console: Console
) -> Record:
    """Sample the completions that no journal holds yet, grade all; writes and returns the result."""
    rank, world = collectives.rank(), collectives.world()
    if config.overwrite:
        collectives.together(lambda: delete(job.path))
    journal = Journal(job.path, job.settings, rank)
    done = journal.load()
    had = {pair_of(record) for record in done}
    if had:
        console.print(f"{job.task.name}: {len(had)} completions are there already, {job.path}", highlight=False)
    wanted = [(i, j) for i in range(len(job.rows)) for j in range(config.n_samples)]
    pending = [pair for pair in wanted if pair not in had][rank::world]
    title = job.task.name if world == 1 else f"{job.task.name} (rank {rank} of {world})"
    new: list[Record] = []
    with progress(title, len(pending), "completions", console) as state:

        def keep(answers: list[Answer]) -> None:
            records = [asdict(answer) for answer in answers]
            journal.add(records)
            new.extend(records)
            state.advance(len(records))

        if pending:
            engine = as_it_is(model, config.rollout_tokens)
            engine.forwarded = state.forward
            generate(engine, model, tokenizer, job.prompted, pending, job.sampler, seed=config.seed, finished=keep)
    seconds = journal.seconds()
    records = sorted(done + [r for part in collectives.gather(new) for r in part], key=pair_of)
    answers = [Answer(**record) for record in records]
    tokens = sum(a.length for a in answers)
    if len(answers) > 1:
        console.print(f"{job.task.name}: grading {len(answers)} completions", highlight=False)
    verdicts = grade(job.task.correct_all, [job.rows[a.problem] for a in answers], [a.completion for a in answers])
    result = {
        "task": job.task.name,
        "model": config.model,
        **scores([a.problem for a in answers], verdicts),
        "mean_steps": sum(a.steps for a in answers) / len(answers),
        "mean_nfe": sum(a.nfe for a in answers) / len(answers),
        "mean_length": tokens / len(answers),
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "seconds_per_problem": seconds / len(answers),
        "protocol": config.protocol,
        **job.settings,
        "rollout_tokens": config.rollout_tokens,
        "processes": world,
        "environment": describe_environment(),
        "python": versions()["python"],
    }
    if (path := job.path) is not None:
        for record, verdict in zip(records, verdicts, strict=True):
            record |= {"prompt": job.prompted[record["problem"]]["prompt"], "correct": verdict}
        files = {"completions": records}
        if hasattr(job.task, "sample_record"):
            files["samples"] = [
                job.task.sample_record(row, prefill(row["prompt"]) + a.completion)
                for a, row in ((a, job.rows[a.problem]) for a in answers)
            ]
        collectives.together(lambda: write_result(path, result, files) if rank == 0 else None)
        for file in partial_files(path):
            file.unlink(missing_ok=True)
    return result
