"""The two scorings of a task: completions that are graded, and options whose likelihoods are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lfpo.base import distributed
from lfpo.base.environment import describe_environment, versions
from lfpo.eval.accuracy import scores
from lfpo.eval.choices import Options, bounds_of, chosen
from lfpo.eval.evaluate import costs
from lfpo.eval.fewshot import cut
from lfpo.eval.generation import Answer, generate, grade
from lfpo.eval.progress import Progress
from lfpo.eval.settings import EvalConfig
from lfpo.eval.store import Journal, Record, pair_of, partial_files, write_result
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.tasks import DataTask, Row, Task
from lfpo.rollout.engine import as_it_is
from lfpo.rollout.sampler import SamplerConfig

Wanted = tuple[int, int]  # (problem, sample)
Keep = Callable[[list[Record]], None]
Work = Callable[[list[Wanted], Keep], None]


@dataclass(frozen=True)
class Job:
    """One task of an evaluation.

    rows: the problems for the grader. asked: the same with the prompts that the model gets. options: used instead for
    scoring by likelihood. stop: text that ends a completion for grading. settings: everything that decides the result.
    path: file of the result.
    """

    config: EvalConfig
    task: Task | DataTask
    rows: list[Row]
    asked: list[Row]
    options: list[Options]
    sampler: SamplerConfig
    stop: str | None
    settings: dict[str, Any]
    path: Path | None


def sample_and_grade(job: Job, model: MaskedDiffusionLM, tokenizer: Any, console: Console) -> Record:
    """Sample completions and grade them; writes and returns the result."""

    def sample(pending: list[Wanted], keep: Keep) -> None:
        generate(
            as_it_is(model, job.config.rollout_tokens),
            model,
            tokenizer,
            job.asked,
            pending,
            job.sampler,
            seed=job.config.seed,
            finished=lambda answers: keep([asdict(a) for a in answers]),
        )

    wanted = [(i, j) for i in range(len(job.rows)) for j in range(job.config.n_samples)]
    records, seconds = _complete(job, wanted, sample, "completions", console)
    answers = [Answer(**record) for record in records]
    texts = [cut(a.completion, job.stop) for a in answers]
    verdicts = grade(job.task, [job.rows[a.problem] for a in answers], texts)
    found = {**scores([a.problem for a in answers], verdicts), **costs(answers, seconds)}
    lines = [
        {**record, "prompt": job.asked[record["problem"]]["prompt"], "correct": verdict}
        for record, verdict in zip(records, verdicts, strict=True)
    ]
    samples = None
    if hasattr(job.task, "sample_record"):
        samples = [job.task.sample_record(job.rows[a.problem], t) for a, t in zip(answers, texts, strict=True)]
    return _finish(job, found, lines, samples)


def compare_likelihoods(job: Job, model: MaskedDiffusionLM, tokenizer: Any, console: Console) -> Record:
    """Take the most likely option of each problem; writes and returns the result."""
    # Enough problems at once to fill forwards with rows of similar length.
    config, tokens = job.config.likelihood, job.config.rollout_tokens
    copies = max((len(o.contexts) for o in job.options), default=1) * config.mc_num
    size = max(1, 4 * tokens // (copies * 64))

    def bound(pending: list[Wanted], keep: Keep) -> None:
        for start in range(0, len(pending), size):
            part = [problem for problem, _ in pending[start : start + size]]
            options = [job.options[i] for i in part]
            found = bounds_of(model, tokenizer, options, config, seed=job.config.seed, tokens=tokens)
            numbers = [{"logp": [b.logp for b in bounds], "nfe": sum(b.nfe for b in bounds)} for bounds in found]
            keep([{"problem": i, **both} for i, both in zip(part, numbers, strict=True)])

    records, seconds = _complete(job, [(i, 0) for i in range(len(job.options))], bound, "problems", console)
    problems = [r["problem"] for r in records]
    options = [job.options[i] for i in problems]
    picks = [chosen(o, r["logp"]) for o, r in zip(options, records, strict=True)]
    plain, norm = (scores(problems, [p[k] == o.right for p, o in zip(picks, options, strict=True)]) for k in (0, 1))
    found = {
        **{k: plain[k] for k in ("n", "accuracy", "interval")},
        **{f"{k}_norm": norm[k] for k in ("accuracy", "interval")},
        "mean_nfe": sum(r["nfe"] for r in records) / len(records),
        "seconds_per_problem": seconds / len(records),
    }
    lines = [
        {**asdict(o), **r, "chosen": pick[0], "chosen_norm": pick[1]}
        for o, r, pick in zip(options, records, picks, strict=True)
    ]
    return _finish(job, found, lines)


def _complete(job: Job, wanted: list[Wanted], work: Work, unit: str, console: Console) -> tuple[list[Record], float]:
    """The records of all wanted pairs from all ranks, in order, and the wall time of the slowest rank in seconds.

    work: called with this rank's pairs that no journal holds yet, and with a function for records as they are finished.
    """
    rank, world = distributed.rank(), distributed.world()
    journal = Journal(job.path, job.settings, rank)
    done = journal.load()
    had = {pair_of(record) for record in done}
    pending = [pair for pair in wanted if pair not in had][rank::world]
    if had:
        console.print(f"{job.task.name}: {len(had)} {unit} are there already, {job.path}", highlight=False)
    title = job.task.name if world == 1 else f"{job.task.name} (rank {rank} of {world})"
    new: list[Record] = []
    with Progress(title, len(pending), unit, console) as progress:

        def keep(records: list[Record]) -> None:
            journal.add(records)
            new.extend(records)
            progress.advance(len(records))

        if pending:
            work(pending, keep)
    seconds = journal.seconds()
    return sorted(done + [r for part in distributed.gather(new) for r in part], key=pair_of), seconds


def _finish(job: Job, found: Record, completions: list[Record], samples: list[Record] | None = None) -> Record:
    """The result: the numbers found and everything needed to reproduce them.

    Rank 0 writes it, and only then the partial files are deleted.
    """
    about = {"task": job.settings["task"], "scoring": job.settings["scoring"], "model": job.config.model}
    result = {
        **about,
        **found,
        "protocol": job.config.protocol,
        **{k: v for k, v in job.settings.items() if k not in about},
        "rollout_tokens": job.config.rollout_tokens,
        "processes": distributed.world(),
        "environment": describe_environment(),
        "python": versions()["python"],
    }
    if (path := job.path) is not None:
        first = distributed.rank() == 0
        distributed.together(lambda: write_result(path, result, completions, samples) if first else None)
        for file in partial_files(path):
            file.unlink(missing_ok=True)
    return result
