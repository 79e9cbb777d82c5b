"""Rewards: functions with TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`."""

from collections.abc import Sequence
from typing import Any

from lfpo.core.scoring import RewardFunction, Rewards, Scorer
from lfpo.rewards.child_process import in_child
from lfpo.rewards.names import reward_name, reward_names


def score(
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    prompts: Sequence[object],
    completions: Sequence[object],
    completion_ids: list[list[int]],
    columns: dict[str, Any],
    timeout: float = 0.0,
) -> Rewards:
    """lfpo.core.scoring.Scorer.score_columns of functions that are named here."""
    scorer = Scorer(dict(zip(reward_names(functions), functions, strict=True)), weights, timeout)
    return scorer.score_columns(prompts, completions, completion_ids, columns)


__all__ = ["RewardFunction", "Rewards", "in_child", "reward_name", "reward_names", "score"]
