"""Evaluation on held-out problems during training: metrics, and some completions to look at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.eval.evaluate import Answer, EvalResult, evaluate
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
