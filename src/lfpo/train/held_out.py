"""Evaluations during training: the trained model on held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core import collectives
from lfpo.core.batch_metrics import means_of_sums
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Engine, Request
from lfpo.core.rng import key
from lfpo.eval.evaluate import Answer, EvalResult, evaluate
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.sources import PromptSource
from lfpo.rewards import Rewards
from lfpo.rollout.episodes import Environment, play
from lfpo.runs.context import Context
from lfpo.train.records import completion_record

KEPT = 16  # problems whose completions are recorded at each evaluation


class Evaluated(Protocol):
    """What an evaluation reads of a trainer.

    source: held-out rows, and what judges their completions. environment: plays the rows in turns; None where a
    verifier or reward functions judge. eval_samplers: name -> sampler. failed_in_evaluation: reward functions whose
    failure in an evaluation the run has noted already; added to.
    """

    args: Any
    source: PromptSource
    model: MaskedDiffusionLM
    tokenizer: Any
    engine: Engine
    environment: Environment | None
    eval_samplers: dict[str, Sampler]
    failed_in_evaluation: set[str]


def held_out(trainer: Evaluated, step: int, context: Context) -> dict[str, float]:
    """Results of the model on its held-out rows under each sampler, as metrics eval/SAMPLER/NAME.

    NAME is steps, nfe, and accuracy with its 95 % interval (low, high), or without a verifier the mean reward. Kept in
    the run: the completions of the first KEPT problems, and of the others the verdict. A collective: each rank samples
    its share, and all return the same.
    """
    if not trainer.source.eval_rows:
        return {}
    started, metrics, records = time.perf_counter(), dict[str, float](), list[Json]()
    trainer.engine.update(f"theta after {step}", trainer.model)
    for name, sampler in trainer.eval_samplers.items():
        if trainer.environment is None:
            results, rows = _judged(trainer, name, sampler, context)
        else:
            results, rows = _played(trainer, trainer.environment, name, sampler, context)
        metrics |= {f"eval/{name}/{key}": value for key, value in results.items()}
        records += [{"sampler": name, **row} for row in rows]
    if trainer.args.log_completions:
        collectives.raise_on_all(lambda: context.folder.write_rows(f"eval/step-{step}.jsonl", records))
    return metrics | {"time/eval": time.perf_counter() - started}


def _judged(trainer: Evaluated, name: str, sampler: Sampler, context: Context) -> tuple[dict[str, float], list[Json]]:
    """Metrics and records of completions that a verifier or reward functions judge."""
    source, tokenizer, progress = trainer.source, trainer.tokenizer, context.observer
    rows, correct_all = source.eval_rows, source.correct_all or (lambda rows, texts: [None] * len(rows))

    def on_finished(answers: list[Answer]) -> None:
        progress.advance(len(answers), sum(answer.length for answer in answers))
        for _ in answers:
            progress.event("on_prediction_step")

    progress.begin(f"evaluation, {name}", len(collectives.share(len(rows))), "problems")
    engine, model, seed = trainer.engine, trainer.model, trainer.args.seed
    result = evaluate(engine, model, tokenizer, rows, correct_all, sampler, seed=seed, finished=on_finished)
    results = {"steps": result.mean_steps, "nfe": result.mean_nfe}
    if source.correct_all is None:
        results["reward"] = _mean_reward(trainer, result, context)
    elif result.accuracy is not None and result.interval is not None:
        results |= {"accuracy": result.accuracy, "low": result.interval[0], "high": result.interval[1]}
    records = []
    for b, row in enumerate(rows if source.correct_all else rows[:KEPT]):
        record: Json = {"problem": b}
        if b < KEPT:
            record |= completion_record(result.trajectory, b, row["prompt"], result.completions[b], tokenizer)
        # Every verdict, so that two evaluations can be compared problem by problem.
        records.append(record | ({"correct": result.correct[b]} if source.correct_all else {}))
    return results, records


def _played(
    trainer: Evaluated, environment: Environment, name: str, sampler: Sampler, context: Context
) -> tuple[dict[str, float], list[Json]]:
    """Metrics and records of episodes; a record is a turn. The mean reward is NaN if an environment failed."""
    model, tokenizer, all_rows = trainer.model, trainer.tokenizer, trainer.source.eval_rows
    numbers = collectives.share(len(all_rows))  # of this rank's rows
    rows = [all_rows[i] for i in numbers]
    encoded = encode_rows(rows, tokenizer, model, sampler.gen_length)
    request = Request(encoded, [key(trainer.args.seed, "eval", i, 0) for i in numbers], sampler)
    context.observer.begin(f"evaluation, {name}", environment.max_turns * len(rows), "turns")

    def on_finished(index: Sequence[int], _: object) -> None:
        context.observer.advance(len(index))
        for _row in index:
            context.observer.event("on_prediction_step")

    turns, t, rewards, sums = play(environment, trainer.engine, model, tokenizer, request, rows, on_finished)
    sums["reward"] = _sum_and_count(rewards)
    _say_why(trainer, rewards, context)
    records = []
    if t is not None:
        sums |= {"steps": (float(t.scheduled_steps.sum()), len(t)), "nfe": (float(t.nfe.sum()), len(t))}
        for b, turn in enumerate(turns):
            if (problem := numbers[turn.rollout]) < KEPT:
                record = completion_record(t, b, turn.row["prompt"], turn.text, tokenizer)
                reward = rewards.parts[environment.name][turn.rollout]
                records.append({"problem": problem, **record, **turn.note, "reward": reward})
    return means_of_sums(collectives.gather(sums)), [r for part in collectives.gather(records) for r in part]


def _mean_reward(trainer: Evaluated, result: EvalResult, context: Context) -> float:
    """The mean total reward over the rows that have one; each rank scores its share. NaN if a function failed."""
    source, texts, of_rollouts = trainer.source, result.completions, result.trajectory.for_rewards()
    rows, numbers = source.eval_rows, collectives.share(len(source.eval_rows))

    def score() -> Rewards:
        if not numbers:
            return Rewards(torch.zeros(0, dtype=torch.float64), {})
        own = {name: [values[i] for i in numbers] for name, values in of_rollouts.items()}
        return source.score([rows[i] for i in numbers], [texts[i] for i in numbers], own)

    rewards = collectives.raise_on_all(score)
    _say_why(trainer, rewards, context)
    total, count = (collectives.sum_number(float(number)) for number in _sum_and_count(rewards))
    return total / count if count else math.nan


def _sum_and_count(rewards: Rewards) -> tuple[float, int]:
    """Sum and number of the rewards that are not neutral. NaN if a function failed: means over other rows or functions
    would look like a better or worse model."""
    number_N = rewards.reward_B[~rewards.reward_B.isnan()]
    return (math.nan, 1) if rewards.failed else (float(number_N.sum()), len(number_N))


def _say_why(trainer: Evaluated, rewards: Rewards, context: Context) -> None:
    """Say once in a run why a function failed in an evaluation, on whichever rank. A collective."""
    failed = {name: why for part in collectives.gather(rewards.failed) for name, why in part.items()}
    for name in sorted(failed.keys() - trainer.failed_in_evaluation):
        trainer.failed_in_evaluation.add(name)
        context.observer.note(f"{name!r} failed on held-out rows, so their reward is null: {failed[name]}")
