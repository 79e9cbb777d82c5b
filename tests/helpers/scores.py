"""Rewards of completions, for tests of reward functions."""

from collections.abc import Sequence
from typing import Any

from lfpo.core.scoring import RewardFunction, Rewards, Scorer
from lfpo.rewards.names import reward_names


def score(
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    prompts: Sequence[object],
    completions: Sequence[object],
    completion_ids: list[list[int]],
    columns: dict[str, Any],
    timeout: float = 0.0,
) -> Rewards:
    """Scorer.score_columns of functions that are named here."""
    scorer = Scorer(dict(zip(reward_names(functions), functions, strict=True)), weights, timeout)
    return scorer.score_columns(prompts, completions, completion_ids, columns)
