"""Samples completions of problems and grades them: in memory for training and comparisons, or for `lfpo eval`."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lfpo.base import distributed
from lfpo.config.errors import UserError
from lfpo.config.sampler import Sampler
from lfpo.core import collectives
from lfpo.core.completions import decode_completions
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Engine, Request
from lfpo.core.rng import key
from lfpo.core.trajectory import Trajectory
from lfpo.eval.estimates import scores
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.sources import Judge, Judged
from lfpo.prompts.tasks import Row


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
    """mean: over problems, of verdicts (accuracy) or rewards, with its 95 % interval (see lfpo.eval.estimates); None
    where nothing was judged or a function failed. values: of each answer its verdict or reward. failed: function -> why
    it failed. trajectory: of this rank's share of the rows; None where it has none."""

    mean: float | None
    interval: tuple[float, float] | None
    not_judged: int
    answers: list[Answer]
    values: list[bool | float | None]
    failed: dict[str, str]
    trajectory: Trajectory | None

    @property
    def mean_steps(self) -> float:
        return statistics.fmean(answer.steps for answer in self.answers)

    @property
    def mean_nfe(self) -> float:
        return statistics.fmean(answer.nfe for answer in self.answers)


def evaluate(
    engine: Engine,
    model: MaskedDiffusionLM,
    tokenizer: object,
    rows: Sequence[Row],
    judge: Judge,
    sampler: Sampler,
    *,
    seed: int = 0,
    finished: Callable[[list[Answer]], None] | None = None,
) -> EvalResult:
    """Sample a completion of each row and judge it. sampler.gen_length must be set.

    engine: samples from `model`. judge: says what completions get (PromptSource.judge). finished: called with this
    rank's answers as they are complete, a few at a time.
    Each rank samples and judges its share of the rows; all ranks return the answers of all. The noise of row i is keyed
    by (seed, i).
    """
    distributed.start()
    wanted = [(i, 0) for i in collectives.own_indices(len(rows))]
    own, trajectory = collectives.raise_on_all(  # else the other ranks would wait for one that failed
        lambda: sample_answers(engine, model, tokenizer, rows, wanted, sampler, seed=seed, finished=finished)
    )
    judged = judge_answers(judge, rows, own, trajectory)
    estimates = scores(range(len(rows)), judged.values)
    return EvalResult(
        mean=None if judged.failed else estimates["mean"],
        interval=None if judged.failed else estimates["interval"],
        not_judged=estimates["not_judged"],
        answers=[answer for answers in collectives.gather(own) for answer in answers],
        values=judged.values,
        failed=judged.failed,
        trajectory=trajectory,
    )


def sample_answers(
    engine: Engine,
    model: MaskedDiffusionLM,
    tokenizer: object,
    rows: Sequence[Row],
    wanted: Sequence[tuple[int, int]],
    sampler: Sampler,
    *,
    seed: int,
    finished: Callable[[list[Answer]], None] | None = None,
) -> tuple[list[Answer], Trajectory | None]:
    """Sample this rank's `wanted` (problem, sample) pairs. Returns their answers, and the trajectory with the same rows
    (None where there are no pairs).

    The other arguments are those of `evaluate`. Raises UserError as `finite`.
    """
    if not wanted:
        engine.idle()
        return [], None
    numbers = sorted({problem for problem, _ in wanted})
    encoded = encode_rows([rows[i] for i in numbers], tokenizer, model, sampler.gen_length)
    prompts = dict(zip(numbers, encoded, strict=True))

    def hand_over(index: list[int], trajectory: Trajectory) -> None:
        assert finished is not None
        # Before they are kept: a later call would take them as done.
        finished(answers_of(finite(trajectory, model), [wanted[i] for i in index], tokenizer))

    seeds = [key(seed, "eval", problem, sample) for problem, sample in wanted]
    request = Request([prompts[problem] for problem, _ in wanted], seeds, sampler)
    trajectory = finite(engine.sample(request, hand_over if finished else None), model)
    return answers_of(trajectory, wanted, tokenizer), trajectory


def finite(trajectory: Trajectory, model: MaskedDiffusionLM) -> Trajectory:
    """The trajectory. Raises UserError where a confidence is not finite."""
    check_finite(trajectory.confidence, model)
    return trajectory


def check_finite(predicted: torch.Tensor, model: MaskedDiffusionLM) -> None:
    """Raises UserError where something that the model predicted is not finite: its tokens mean nothing."""
    if bool(predicted.isfinite().all()):
        return
    wrong = (name for name, p in model.backbone.named_parameters() if not bool(p.isfinite().all()))
    told = f" ({name} holds values that are not finite)" if (name := next(wrong, "")) else ""
    raise UserError(
        f"model {model.source or 'in memory'}: its predictions are not numbers{told}; load a checkpoint with finite "
        "weights and its own config.json"
    )


def answers_of(trajectory: Trajectory, pairs: Sequence[tuple[int, int]], tokenizer: object) -> list[Answer]:
    """The rows of a trajectory as answers; row i is the (problem, sample) of pairs[i]."""
    texts = decode_completions(tokenizer, trajectory.tokens, trajectory.eos_id)
    steps, nfe, lengths = (x.tolist() for x in (trajectory.scheduled_steps, trajectory.nfe, trajectory.lengths))
    return [Answer(p, s, texts[i], steps[i], nfe[i], lengths[i]) for i, (p, s) in enumerate(pairs)]


def judge_answers(judge: Judge, rows: Sequence[Row], own: Sequence[Answer], trajectory: Trajectory | None) -> Judged:
    """The verdicts or rewards of all ranks' answers, in the order of ranks; each rank judges its own. trajectory: row b
    is own[b]; None where this rank has no answers."""

    def judged() -> Judged:
        if trajectory is None:
            return Judged([], {})
        return judge([rows[a.problem] for a in own], [a.completion for a in own], trajectory.for_rewards())

    parts = collectives.gather(collectives.raise_on_all(judged))
    failed = {name: why for part in parts for name, why in part.failed.items()}
    return Judged([value for part in parts for value in part.values], failed)
