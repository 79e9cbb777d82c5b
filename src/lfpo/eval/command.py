"""`lfpo eval`: one model, one protocol, any number of tasks; a table on the screen and a JSON file a task."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lfpo.base import distributed
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError
from lfpo.eval.accuracy import scores
from lfpo.eval.choices import Options, bounds_of, chosen, options_of, pairs_of
from lfpo.eval.evaluate import costs
from lfpo.eval.fewshot import asked, cut, examples, stop_text
from lfpo.eval.generation import Answer, generate, grade
from lfpo.eval.progress import Progress
from lfpo.eval.settings import DTYPES, EvalConfig
from lfpo.eval.store import Journal, data_sha256, file_sha256, find, write_lines, write_result
from lfpo.eval.table import open_console, show
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.loading import resolve
from lfpo.prompts.encoding import encode_rows
from lfpo.prompts.tasks import DataTask, Row, Task, get_task
from lfpo.rollout.sampler import SamplerConfig


@dataclass(frozen=True)
class Job:
    """One task of an evaluation.

    rows: as the graders know them. asked: with the prompts that the model gets. options: instead, where likelihoods are
    compared. stop: where a completion ends for grading. settings: what decides the result. path: of the result.
    """

    task: Task | DataTask
    rows: list[Row]
    asked: list[Row]
    options: list[Options]
    sampler: SamplerConfig
    stop: str | None
    settings: dict[str, Any]
    path: Path | None


def run_eval(config: EvalConfig, console: Console | None = None) -> list[dict[str, Any]]:
    """Evaluate and print; returns (and writes, if asked) one result object a task.

    Of several processes each takes its share of the problems; the first prints and writes.
    """
    distributed.start()
    rank, world = distributed.rank(), distributed.world()
    console = console or open_console(quiet=rank != 0)
    if config.threads:
        torch.set_num_threads(config.threads)
    weights = distributed.together(lambda: file_sha256(resolve(config.model)) if rank == 0 else "")[0]
    jobs = [prepare(name, config, weights) for name in config.task_names]
    if len({job.path for job in jobs}) < len(jobs) and config.output:
        raise UserError("two of the tasks would write the same file; evaluate them into different outputs")
    finished = distributed.together(lambda: [find(job.path, job.settings, config.overwrite) for job in jobs])[0]
    model = load_model(config.model, dtype=DTYPES[config.dtype], device=distributed.device())
    tokenizer = load_tokenizer(config.model)
    for job in jobs:  # whatever does not fit the model is told before hours are spent
        _check_lengths(job, model, tokenizer, config.seed)
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


def prepare(name: str, config: EvalConfig, weights: str) -> Job:
    """A task's problems, the way they are asked, and everything that decides its result."""
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
    """The file of a task's result."""
    if config.output is None:
        return None
    path = Path(config.output).expanduser()
    if path.suffix == ".json":
        return path
    name = re.sub(r"[^\w.-]+", "-", task)
    return path / f"{name}{'-likelihood' if config.scoring == 'likelihood' else ''}.json"


def _check_lengths(job: Job, model: MaskedDiffusionLM, tokenizer: Any, seed: int) -> None:
    if job.options:
        for options in job.options:
            pairs_of(options, tokenizer, model, seed)
    else:
        encode_rows(job.asked, tokenizer, model, job.sampler.gen_length or 0)


def sample_and_grade(
    job: Job, config: EvalConfig, model: MaskedDiffusionLM, tokenizer: Any, console: Console
) -> dict[str, Any]:
    """What the model writes, graded."""
    rank, world = distributed.rank(), distributed.world()
    journal = Journal(job.path, job.settings, rank)
    done = [Answer(**record) for record in journal.load()]
    had = {(a.problem, a.sample) for a in done}
    pairs = [(i, j) for i in range(len(job.rows)) for j in range(config.n_samples)]
    pending = [pair for pair in pairs if pair not in had][rank::world]
    new: list[Answer] = []
    with _progress(job, console, len(pending), len(had), "completions") as progress:

        def keep(answers: list[Answer]) -> None:
            journal.add([asdict(a) for a in answers])
            new.extend(answers)
            progress.advance(len(answers))

        if pending:
            generate(
                model,
                tokenizer,
                job.asked,
                pending,
                job.sampler,
                seed=config.seed,
                rollout_tokens=config.rollout_tokens,
                finished=keep,
            )
    seconds = journal.seconds
    answers = sorted(done + [a for part in distributed.gather(new) for a in part], key=lambda a: (a.problem, a.sample))
    texts = [cut(a.completion, job.stop) for a in answers]
    verdicts = grade(job.task, [job.rows[a.problem] for a in answers], texts)
    found = {**scores([a.problem for a in answers], verdicts), **costs(answers, seconds)}
    result = describe(job, config, found)
    completions = [
        {**asdict(a), "prompt": job.asked[a.problem]["prompt"], "correct": verdict}
        for a, verdict in zip(answers, verdicts, strict=True)
    ]
    _keep(job, journal, result, completions)
    if job.path is not None and rank == 0 and hasattr(job.task, "sample_record"):
        records = [job.task.sample_record(job.rows[a.problem], t) for a, t in zip(answers, texts, strict=True)]
        write_lines(job.path.with_name(f"{job.path.stem}.samples.jsonl"), records)
    return result


def compare_likelihoods(
    job: Job, config: EvalConfig, model: MaskedDiffusionLM, tokenizer: Any, console: Console
) -> dict[str, Any]:
    """The most likely option of each problem."""
    rank, world = distributed.rank(), distributed.world()
    journal = Journal(job.path, job.settings, rank)
    done = journal.load()
    had = {record["problem"] for record in done}
    pending = [i for i in range(len(job.options)) if i not in had][rank::world]
    new: list[dict[str, Any]] = []
    # Enough problems at once to fill forwards with rows of like length.
    copies = max((len(o.contexts) for o in job.options), default=1) * config.likelihood.mc_num
    size = max(1, 4 * config.rollout_tokens // (copies * 64))
    with _progress(job, console, len(pending), len(had), "problems") as progress:
        for start in range(0, len(pending), size):
            part = pending[start : start + size]
            bounds = bounds_of(
                model,
                tokenizer,
                [job.options[i] for i in part],
                config.likelihood,
                seed=config.seed,
                tokens=config.rollout_tokens,
            )
            records: list[dict[str, Any]] = [
                {"problem": i, "logp": [b.logp for b in found], "nfe": sum(b.nfe for b in found)}
                for i, found in zip(part, bounds, strict=True)
            ]
            journal.add(records)
            new += records
            progress.advance(len(records))
    seconds = journal.seconds
    records = sorted(done + [r for part in distributed.gather(new) for r in part], key=lambda r: r["problem"])
    picks = [chosen(job.options[r["problem"]], r["logp"]) for r in records]
    right = [job.options[r["problem"]].right for r in records]
    problems = [r["problem"] for r in records]
    plain, norm = (scores(problems, [p[k] == r for p, r in zip(picks, right, strict=True)]) for k in (0, 1))
    found = {
        **{k: plain[k] for k in ("n", "accuracy", "interval")},
        **{f"{k}_norm": norm[k] for k in ("accuracy", "interval")},
        "mean_nfe": sum(r["nfe"] for r in records) / len(records),
        "seconds_per_problem": seconds / len(records),
    }
    result = describe(job, config, found)
    answers = [
        {**asdict(job.options[r["problem"]]), **r, "chosen": pick[0], "chosen_norm": pick[1]}
        for r, pick in zip(records, picks, strict=True)
    ]
    _keep(job, journal, result, answers)
    return result


def _progress(job: Job, console: Console, pending: int, done: int, unit: str) -> Progress:
    world = distributed.world()
    title = job.task.name if world == 1 else f"{job.task.name} (process 1 of {world})"
    if done:
        console.print(f"{job.task.name}: {done} {unit} are there already, {job.path}", highlight=False)
    return Progress(title, pending, unit, console)


def _keep(job: Job, journal: Journal, result: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    """Write the result, then forget the partial files: the answers are in both only while that is going on."""
    if job.path is None:
        return
    path, first = job.path, distributed.rank() == 0
    distributed.together(lambda: write_result(path, result, answers) if first else None)
    journal.remove()


def describe(job: Job, config: EvalConfig, found: dict[str, Any]) -> dict[str, Any]:
    """Everything needed to reproduce a number, beside the number."""
    about = {"task": job.settings["task"], "scoring": job.settings["scoring"], "model": config.model}
    return {
        **about,
        **found,
        "protocol": config.protocol,
        **{k: v for k, v in job.settings.items() if k not in about},
        "rollout_tokens": config.rollout_tokens,
        "processes": distributed.world(),
        "environment": describe_environment(),
        "python": versions()["python"],
    }
