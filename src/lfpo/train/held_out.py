"""Evaluations during training: the trainer's model on its held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lfpo.base import distributed
from lfpo.base.rng import key
from lfpo.config.sampler import SamplerConfig
from lfpo.eval.evaluate import Answer, EvalResult, evaluate
from lfpo.prompts.encoding import encode_rows
from lfpo.rewards import Rewards
from lfpo.rollout.engine import Request
from lfpo.rollout.episodes import Environment, play
from lfpo.runs.context import Context
from lfpo.train.records import completion_record

if TYPE_CHECKING:
    from lfpo.train.rl import LFPOTrainer

KEPT = 16  # problems whose completions are recorded at each evaluation


def held_out(trainer: LFPOTrainer, step: int, context: Context) -> dict[str, float]:
    """Results of the trainer's model on its held-out rows under each eval sampler, as metrics eval/SAMPLER/NAME.

    NAME is steps, nfe, and accuracy with its 95 % interval (low, high), or without a verifier the mean reward. Kept in
    the run: the completions of the first KEPT problems, and of the others the verdict. A collective: each rank samples
    its share, and all return the same.
    """
    source, progress = trainer.source, context.progress
    rows, correct_all = source.eval_rows, source.correct_all or (lambda rows, texts: [None] * len(rows))
    if not rows:
        return {}

    def count(answers: list[Answer]) -> None:
        progress.advance(len(answers), sum(answer.length for answer in answers))
        for _ in answers:
            context.event("on_prediction_step")

    started, metrics, records = time.perf_counter(), dict[str, float](), list[dict[str, Any]]()
    trainer.engine.update(f"theta after {step}", trainer.model)
    environment = trainer.environment
    how: dict[str, Any] = {"seed": trainer.args.seed, "finished": count}
    for name, sampler in trainer.eval_samplers.items():
        if environment is not None:
            found, played = _played(trainer, environment, name, sampler, context)
            metrics |= {f"eval/{name}/{key}": value for key, value in found.items()}
            records += [{"sampler": name, **record} for record in played]
            continue
        progress.begin(f"evaluation, {name}", len(distributed.share(len(rows))), "problems")
        result = evaluate(trainer.engine, trainer.model, trainer.tokenizer, rows, correct_all, sampler, **how)
        found = {"steps": result.mean_steps, "nfe": result.mean_nfe}
        if source.correct_all is None:
            found["reward"] = _mean_reward(trainer, result, context)
        elif result.accuracy is not None and result.interval is not None:
            found |= {"accuracy": result.accuracy, "low": result.interval[0], "high": result.interval[1]}
        metrics |= {f"eval/{name}/{key}": value for key, value in found.items()}
        for b, row in enumerate(rows if source.correct_all else rows[:KEPT]):
            record: dict[str, Any] = {"sampler": name, "problem": b}
            if b < KEPT:
                text = result.completions[b]
                record |= completion_record(result.trajectory, b, row["prompt"], text, trainer.tokenizer)
            # Every verdict, so that two evaluations can be compared problem by problem.
            records.append(record | ({"correct": result.correct[b]} if source.correct_all else {}))
    if trainer.args.log_completions:
        distributed.alone(lambda: context.folder.write_rows(f"eval/step-{step}.jsonl", records))
    return metrics | {"time/eval": time.perf_counter() - started}


def _played(
    trainer: LFPOTrainer, environment: Environment, name: str, sampler: SamplerConfig, context: Context
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics and records of episodes; a record is a turn. The mean reward is NaN if an environment failed."""
    model, tokenizer, mine = trainer.model, trainer.tokenizer, distributed.share(len(trainer.source.eval_rows))
    rows = [trainer.source.eval_rows[i] for i in mine]
    encoded = encode_rows(rows, tokenizer, model, sampler.gen_length or 0)
    request = Request(encoded, [key(trainer.args.seed, "eval", i, 0) for i in mine], sampler)
    context.progress.begin(f"evaluation, {name}", environment.max_turns * len(rows), "turns")

    def count(index: Sequence[int], _: object) -> None:
        context.progress.advance(len(index))
        for _row in index:
            context.event("on_prediction_step")

    turns, t, rewards, sums = play(environment, trainer.engine, model, tokenizer, request, rows, count)
    sums["reward"] = _sum_and_count(rewards)
    _say_why(trainer, rewards, context)
    records = []
    if t is not None:
        sums |= {"steps": (float(t.scheduled_steps.sum()), len(t)), "nfe": (float(t.nfe.sum()), len(t))}
        for b, turn in enumerate(turns):
            if (problem := mine[turn.rollout]) < KEPT:
                record = completion_record(t, b, turn.row["prompt"], turn.text, tokenizer)
                earned = rewards.parts[environment.name][turn.rollout]
                records.append({"problem": problem, **record, **turn.note, "reward": earned})
    return distributed.means_over_ranks(sums), [r for part in distributed.gather(records) for r in part]


def _mean_reward(trainer: LFPOTrainer, result: EvalResult, context: Context) -> float:
    """The mean total reward over the rows that have one; each rank scores its share. NaN if a function failed."""
    rows, texts, all_ids = trainer.source.eval_rows, result.completions, result.trajectory.completion_ids()
    mine = distributed.share(len(rows))

    def score() -> Rewards:
        if not mine:
            return Rewards(torch.zeros(0, dtype=torch.float64), {})
        return trainer.source.score([rows[i] for i in mine], [texts[i] for i in mine], [all_ids[i] for i in mine])

    scored = distributed.alone(score)
    _say_why(trainer, scored, context)
    total, count = (distributed.sum_number(float(number)) for number in _sum_and_count(scored))
    return total / count if count else math.nan


def _sum_and_count(rewards: Rewards) -> tuple[float, int]:
    """Of the rewards that are not neutral. NaN if a function failed: means over other rows or functions would look like
    a better or worse model."""
    number_N = rewards.reward_B[~rewards.reward_B.isnan()]
    return (math.nan, 1) if rewards.failed else (float(number_N.sum()), len(number_N))


def _say_why(trainer: LFPOTrainer, rewards: Rewards, context: Context) -> None:
    """Say once in a run why a function failed in an evaluation, on whichever rank. A collective."""
    failed = {name: why for part in distributed.gather(rewards.failed) for name, why in part.items()}
    for name in sorted(failed.keys() - trainer.failed_in_evaluation):
        trainer.failed_in_evaluation.add(name)
        context.note(f"{name!r} failed on held-out rows, so their reward is null: {failed[name]}")
