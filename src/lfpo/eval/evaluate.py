"""Samples completions of problems and grades them: in memory for training and comparisons, or for `lfpo eval`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.base import distributed
from lfpo.base.rng import key
from lfpo.eval.accuracy import scores
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.encoding import decode_completions, encode_rows
from lfpo.prompts.tasks import Row
from lfpo.rollout.engine import Engine, Request
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory, join

Verdict = bool | None


@dataclass(frozen=True)
class Answer:
    """One completion. problem, sample: indices. steps: scheduled steps. nfe: forwards. length: tokens up to and
    including the first EOS."""

    problem: int
    sample: int
    completion: str
    steps: int
    nfe: int
    length: int


@dataclass(frozen=True)
class EvalResult:
    """accuracy: mean over problems and samples, with a 95 % interval over problems. pass_at_k: k -> estimate.

    mean_steps, mean_nfe, mean_length: scheduled steps (the paper's "inference steps"), forwards, and tokens up to the
    first EOS of a completion. tokens_per_second: the sum of these lengths over the wall time of sampling.
    completions, correct: text and verdict of each completion; trajectory: its row b is completion b.
    """

    n: int
    n_samples: int
    accuracy: float | None
    interval: tuple[float, float] | None
    pass_at_k: dict[int, float]
    mean_steps: float
    mean_nfe: float
    mean_length: float
    tokens_per_second: float
    seconds_per_problem: float
    completions: list[str]
    correct: list[Verdict]
    not_judged: int
    trajectory: Trajectory


def evaluate(
    engine: Engine,
    model: MaskedDiffusionLM,
    tokenizer: Any,
    rows: Sequence[Row],
    correct_all: Callable[[Sequence[Row], Sequence[str]], Sequence[Verdict]],
    sampler: SamplerConfig,
    *,
    seed: int = 0,
    n_samples: int = 1,
    finished: Callable[[list[Answer]], None] | None = None,
) -> EvalResult:
    """Sample `n_samples` completions a row and verify them. sampler.gen_length must be set.

    engine: samples from `model`.
    correct_all: returns the verdict of each completion on its row; None (not judged) counts in `not_judged` only.
    Each rank samples and verifies its share of the rows; all ranks return the whole result. The completions of row i
    start at index i * n_samples; their noise is keyed by (seed, i, sample).
    finished: called with this rank's answers as soon as they are complete, a few at a time.
    """
    distributed.start()
    pairs = [(i, j) for i in distributed.share(len(rows)) for j in range(n_samples)]
    started = time.perf_counter()
    own: list[Trajectory] = []
    if pairs:
        sampled = generate(engine, model, tokenizer, rows, pairs, sampler, seed=seed, finished=finished)
        own.append(sampled.to("cpu"))
    else:
        engine.idle()
    seconds = time.perf_counter() - started
    answers = [answer for t in own for answer in answers_of(t, pairs, tokenizer)]
    verdicts = list(correct_all([rows[a.problem] for a in answers], [a.completion for a in answers]))
    parts = distributed.gather((own, answers, verdicts, seconds))
    answers = [answer for part in parts for answer in part[1]]
    verdicts = [verdict for part in parts for verdict in part[2]]
    return EvalResult(
        **scores([a.problem for a in answers], verdicts),
        **costs(answers, max(part[3] for part in parts)),
        completions=[a.completion for a in answers],
        correct=verdicts,
        trajectory=join([t for part in parts for t in part[0]], model.pad_id).to(model.device),
    )


def generate(
    engine: Engine,
    model: MaskedDiffusionLM,
    tokenizer: Any,
    rows: Sequence[Row],
    wanted: Sequence[tuple[int, int]],
    sampler: SamplerConfig,
    *,
    seed: int,
    finished: Callable[[list[Answer]], None] | None = None,
) -> Trajectory:
    """Sample the `wanted` (problem, sample) pairs, at least one; row i of the trajectory is `wanted[i]`.

    The other arguments are those of `evaluate`.
    """
    assert sampler.gen_length is not None
    numbers = sorted({problem for problem, _ in wanted})
    encoded = encode_rows([rows[i] for i in numbers], tokenizer, model, sampler.gen_length)
    prompts = dict(zip(numbers, encoded, strict=True))

    def hand_over(index: list[int], trajectory: Trajectory) -> None:
        assert finished is not None
        finished(answers_of(trajectory, [wanted[i] for i in index], tokenizer))

    seeds = [key(seed, "eval", problem, sample) for problem, sample in wanted]
    request = Request([prompts[problem] for problem, _ in wanted], seeds, sampler)
    return engine.sample(request, hand_over if finished else None)


def answers_of(trajectory: Trajectory, pairs: Sequence[tuple[int, int]], tokenizer: Any) -> list[Answer]:
    """The rows of a trajectory as answers; row i is the (problem, sample) of pairs[i]."""
    texts = decode_completions(tokenizer, trajectory.tokens, trajectory.eos_id)
    steps, nfe, lengths = (x.tolist() for x in (trajectory.scheduled_steps, trajectory.nfe, trajectory.lengths))
    return [Answer(p, s, texts[i], steps[i], nfe[i], lengths[i]) for i, (p, s) in enumerate(pairs)]


def grade(task: Any, rows: Sequence[Row], completions: Sequence[str]) -> list[Verdict]:
    """The verdict of each completion on its row, None where it cannot be judged on this machine; each rank judges its
    share."""
    mine = distributed.share(len(rows))
    own_rows, own = [rows[i] for i in mine], [completions[i] for i in mine]
    verdicts = list(task.correct_all(own_rows, own)) if own else []
    return [verdict for part in distributed.gather(verdicts) for verdict in part]


def costs(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Mean steps, forwards and length, and the speed, of completions that took `seconds` of wall time in total."""
    n = len(answers)
    tokens = sum(a.length for a in answers)
    return {
        "mean_steps": sum(a.steps for a in answers) / n,
        "mean_nfe": sum(a.nfe for a in answers) / n,
        "mean_length": tokens / n,
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "seconds_per_problem": seconds / n,
    }
