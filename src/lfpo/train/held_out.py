"""Evaluations during training: the trained model on held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

from lfpo.config.json import Json
from lfpo.config.sampler import Sampler
from lfpo.core import collectives
from lfpo.core.batch_metrics import means_of_sums
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Engine, Request
from lfpo.core.rng import key
from lfpo.eval.estimates import scores
from lfpo.eval.evaluate import Answer, evaluate
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.sources import PromptSource
from lfpo.rollout.episodes import Environment, play
from lfpo.runs.context import Context
from lfpo.train.records import completion_record

KEPT = 16  # problems whose completions are recorded at each evaluation


class Evaluated(Protocol):
    """What an evaluation reads of a trainer.

    source: held-out rows, and what judges their completions. environment: plays the rows in turns; None where a
    verifier or reward functions judge. eval_samplers: name -> sampler.
    """

    args: Any
    source: PromptSource
    model: MaskedDiffusionLM
    tokenizer: Any
    engine: Engine
    environment: Environment | None
    eval_samplers: dict[str, Sampler]


def held_out(trainer: Evaluated, step: int, context: Context) -> dict[str, float]:
    """Results of the model on its held-out rows under each sampler, as metrics eval/SAMPLER/NAME.

    NAME is steps, nfe, and accuracy, or without a verifier the mean reward, with its 95 % interval (low, high). Kept in
    the run: the completions of the first KEPT problems, and of the others the verdict or reward. A collective: each
    rank samples its share, and all return the same.
    """
    if not trainer.source.eval_rows:
        return {}
    started, metrics, records = time.perf_counter(), dict[str, float](), list[Json]()
    # theta, not theta_old, which the engine samples rollouts from; a name, so that it is no version of the queue's.
    trainer.engine.update(f"theta after {step}", trainer.model)
    source, measured = trainer.source, _judged if trainer.environment is None else _played
    for name, sampler in trainer.eval_samplers.items():
        results, values, failed, own_records = measured(trainer, name, sampler, context)
        for function in sorted(failed):
            why = failed[function]
            context.observer.note(f"{function!r} failed on held-out rows, so their results are null: {why}")
        found = scores(range(len(source.eval_rows)), values)
        # A mean over the rows that did not fail would look like a better or worse model.
        mean, interval = (None, None) if failed else (found["mean"], found["interval"])
        if mean is not None or source.verify is None:
            results[source.measure] = math.nan if mean is None else mean
        if interval is not None:
            results["low"], results["high"] = interval
        metrics |= {f"eval/{name}/{key}": value for key, value in results.items()}
        records += [{"sampler": name, **row} for part in collectives.gather(own_records) for row in part]
    if trainer.args.log_completions:
        collectives.raise_on_all(lambda: context.folder.write_rows(f"eval/step-{step}.jsonl", records))
    return metrics | {"time/eval": time.perf_counter() - started}


# What one sampler gives: mean steps and forwards; the value of each row; function -> why it failed; the records of this
# rank's rows.
Measured = tuple[dict[str, float], list[bool | float | None], dict[str, str], list[Json]]


def _judged(trainer: Evaluated, name: str, sampler: Sampler, context: Context) -> Measured:
    """Completions that a verifier or reward functions judge. A record is a completion; after the first KEPT
    problems it holds the value alone."""
    source, tokenizer, progress, rows = trainer.source, trainer.tokenizer, context.observer, trainer.source.eval_rows
    own = collectives.own_indices(len(rows))

    def on_finished(answers: list[Answer]) -> None:
        progress.advance(len(answers), sum(answer.length for answer in answers))
        for _ in answers:
            progress.event("on_prediction_step")

    progress.begin(f"evaluation, {name}", len(own), "problems")
    engine, model, seed = trainer.engine, trainer.model, trainer.args.seed
    result = evaluate(engine, model, tokenizer, rows, source.judge, sampler, seed=seed, finished=on_finished)
    records = []
    for b, problem in enumerate(own):
        record: Json = {"problem": problem}
        if problem < KEPT and (t := result.trajectory) is not None:
            record |= completion_record(t, b, rows[problem], result.answers[problem].completion, tokenizer)
        # Every verdict or reward, so that two evaluations can be compared problem by problem.
        records.append(record | {"reward" if source.verify is None else "correct": result.values[problem]})
    return {"steps": result.mean_steps, "nfe": result.mean_nfe}, result.values, result.failed, records


def _played(trainer: Evaluated, name: str, sampler: Sampler, context: Context) -> Measured:
    """Episodes of the environment. A record is a turn."""
    model, tokenizer, all_rows = trainer.model, trainer.tokenizer, trainer.source.eval_rows
    environment, numbers = trainer.environment, collectives.own_indices(len(all_rows))  # of this rank's rows
    assert environment is not None
    rows = [all_rows[i] for i in numbers]
    encoded = encode_rows(rows, tokenizer, model, sampler.gen_length)
    request = Request(encoded, [key(trainer.args.seed, "eval", i, 0) for i in numbers], sampler)
    context.observer.begin(f"evaluation, {name}", environment.max_turns * len(rows), "turns")

    def on_finished(index: Sequence[int], _: object) -> None:
        context.observer.advance(len(index))
        for _row in index:
            context.observer.event("on_prediction_step")

    turns, t, rewards, sums = play(environment, trainer.engine, model, tokenizer, request, rows, on_finished)
    parts = collectives.gather((rewards.reward_B.tolist(), rewards.failed))
    failed = {name: why for _, of_rank in parts for name, why in of_rank.items()}
    values = [None if r != r else r for rewards_of_rank, _ in parts for r in rewards_of_rank]
    records = []
    if t is not None:
        sums |= {"steps": (float(t.scheduled_steps.sum()), len(t)), "nfe": (float(t.nfe.sum()), len(t))}
        for b, turn in enumerate(turns):
            if (problem := numbers[turn.rollout]) < KEPT:
                record = completion_record(t, b, turn.row, turn.text, tokenizer)
                reward = rewards.parts[environment.name][turn.rollout]
                records.append({"problem": problem, **record, **turn.note, "reward": reward})
    return means_of_sums(collectives.gather(sums)), values, failed, records
