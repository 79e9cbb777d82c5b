"""Evaluation on held-out problems during training: metrics, and some completions to look at."""

from __future__ import annotations

import math
from typing import Any

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.eval.evaluate import Answer, EvalResult, evaluate
from lfpo.models import MaskedDiffusionLM
from lfpo.prompts.sources import PromptSource
from lfpo.rollout.engine import Engine
from lfpo.rollout.records import completion_record
from lfpo.rollout.sampler import SamplerConfig

KEPT = 16  # problems whose completions are recorded at each evaluation


def held_out(
    source: PromptSource,
    engine: Engine,
    model: MaskedDiffusionLM,
    tokenizer: Any,
    sampler: SamplerConfig,
    *,
    reward_weights: list[float],
    reward_timeout: float,
    seed: int,
    progress: Progress,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics, and records: the first KEPT problems' completions, and of the other problems only the verdict. A
    collective: each rank samples its share, and all return the same.

    Metrics: steps, nfe, and accuracy with its 95 % interval (low, high); the mean reward where there is no verifier.
    """
    rows = source.eval_rows
    correct_all = source.correct_all or (lambda rows, texts: [None] * len(rows))

    def count(answers: list[Answer]) -> None:
        progress.advance(len(answers), sum(answer.length for answer in answers))

    result = evaluate(engine, model, tokenizer, rows, correct_all, sampler, seed=seed, finished=count)
    metrics = {"steps": result.mean_steps, "nfe": result.mean_nfe}
    if source.correct_all is None:
        metrics["reward"] = _mean_reward(source, result, reward_weights, reward_timeout)
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


def _mean_reward(source: PromptSource, result: EvalResult, weights: list[float], timeout: float) -> float:
    """The mean total reward over all rows; each rank scores its share. NaN if a reward function failed."""
    rows = source.eval_rows
    mine = distributed.share(len(rows))
    own, ids = [rows[i] for i in mine], result.trajectory.completion_ids()
    total = 0.0
    if own:
        texts = [result.completions[i] for i in mine]
        scored = source.score(own, texts, [ids[i] for i in mine], weights, timeout)
        total = math.nan if scored.failed else float(scored.reward_B.sum())
    return distributed.sum_number(total) / len(rows)
