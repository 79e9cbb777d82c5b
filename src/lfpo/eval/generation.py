"""Sampling completions of problems, and grading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.base import distributed
from lfpo.base.rng import key
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.encoding import decode_completions, encode_rows
from lfpo.prompts.tasks import Row
from lfpo.rollout.engine import Engine, Request
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory

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
    """Sample the `wanted` (problem, sample) pairs, at least one; their noise is keyed by (seed, problem, sample).

    engine: samples from `model`, which says what a prompt may be.
    finished: called with each few answers as soon as they are complete. Row i of the trajectory is `wanted[i]`.
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
