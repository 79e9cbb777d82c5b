"""Evaluation on held-out problems during training: metrics, and some completions to look at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.base.rng import key
from lfpo.eval.evaluate import Answer, EvalResult, evaluate
from lfpo.prompts.encoding import encode_rows
from lfpo.rollout.engine import Request
from lfpo.rollout.episodes import Environment, play
from lfpo.rollout.records import completion_record
from lfpo.rollout.sampler import SamplerConfig

if TYPE_CHECKING:
    from lfpo.train.rl import LFPOTrainer

KEPT = 16  # problems whose completions are recorded at each evaluation


def held_out(
    trainer: LFPOTrainer, name: str, sampler: SamplerConfig, progress: Progress
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Evaluate the weights that the trainer's engine has on its held-out rows, with the eval sampler of this name.

    Returns metrics, and records: the first KEPT problems' completions, and of the other problems only the verdict. A
    collective: each rank samples its share, and all return the same.
    Metrics: steps, nfe, and accuracy with its 95 % interval (low, high); the mean reward where there is no verifier.
    """
    if trainer.environment is not None:
        return _played(trainer, trainer.environment, name, sampler, progress)
    source, tokenizer, rows = trainer.source, trainer.tokenizer, trainer.source.eval_rows
    correct_all = source.correct_all or (lambda rows, texts: [None] * len(rows))
    progress.begin(f"evaluation, {name}", len(distributed.share(len(rows))), "problems")

    def count(answers: list[Answer]) -> None:
        progress.advance(len(answers), sum(answer.length for answer in answers))

    seed = trainer.args.seed
    result = evaluate(trainer.engine, trainer.model, tokenizer, rows, correct_all, sampler, seed=seed, finished=count)
    metrics = {"steps": result.mean_steps, "nfe": result.mean_nfe}
    if source.correct_all is None:
        metrics["reward"] = _mean_reward(trainer, result)
    elif result.accuracy is not None and result.interval is not None:
        metrics |= {"accuracy": result.accuracy, "low": result.interval[0], "high": result.interval[1]}
    records = []
    for b, row in enumerate(rows[:KEPT]):
        record = completion_record(result.trajectory, b, row["prompt"], result.completions[b], tokenizer)
        verdict = {"correct": result.correct[b]} if source.correct_all else {}
        records.append({"problem": b, **record, **verdict})
    if source.correct_all:  # every verdict, so that two evaluations can be compared problem by problem
        records += [{"problem": b, "correct": result.correct[b]} for b in range(KEPT, len(rows))]
    return metrics, records


def _played(
    trainer: LFPOTrainer, environment: Environment, name: str, sampler: SamplerConfig, progress: Progress
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """`held_out` of episodes; a record is a turn. The mean reward is NaN if an environment failed."""
    model, tokenizer, mine = trainer.model, trainer.tokenizer, distributed.share(len(trainer.source.eval_rows))
    rows = [trainer.source.eval_rows[i] for i in mine]
    encoded = encode_rows(rows, tokenizer, model, sampler.gen_length or 0)
    request = Request(encoded, [key(trainer.args.seed, "eval", i, 0) for i in mine], sampler)
    progress.begin(f"evaluation, {name}", environment.max_turns * len(rows), "turns")
    turns, t, rewards, sums = play(
        environment, trainer.engine, model, tokenizer, request, rows, lambda index, _: progress.advance(len(index))
    )
    sums["reward"] = (math.nan if rewards.failed else float(rewards.reward_B.sum()), len(rows))
    records = []
    if t is not None:
        sums |= {"steps": (float(t.scheduled_steps.sum()), len(t)), "nfe": (float(t.nfe.sum()), len(t))}
        for b, turn in enumerate(turns):
            if (problem := mine[turn.rollout]) < KEPT:
                record = completion_record(t, b, turn.row["prompt"], turn.text, tokenizer)
                earned = rewards.parts[environment.name][turn.rollout]
                records.append({"problem": problem, **record, **turn.note, "reward": earned})
    return distributed.means_over_ranks(sums), [r for part in distributed.gather(records) for r in part]


def _mean_reward(trainer: LFPOTrainer, result: EvalResult) -> float:
    """The mean total reward over all rows; each rank scores its share. NaN if a reward function failed."""
    rows = trainer.source.eval_rows
    mine = distributed.share(len(rows))
    ids, total = result.trajectory.completion_ids(), 0.0
    if mine:
        own, texts = [rows[i] for i in mine], [result.completions[i] for i in mine]
        scored = trainer.source.score(
            own, texts, [ids[i] for i in mine], trainer.reward_weights, trainer.args.reward_timeout
        )
        total = math.nan if scored.failed else float(scored.reward_B.sum())
    return distributed.sum_number(total) / len(rows)
