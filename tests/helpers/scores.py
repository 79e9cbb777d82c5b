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
    forwards: Sequence[int] | None = None,
) -> Rewards:
    """Scorer.score_columns of functions that are named here."""
    scorer = Scorer(dict(zip(reward_names(functions), functions, strict=True)), weights, timeout)
    # As of a rollout that revealed one token in each forward.
    steps = [list(range(len(ids))) for ids in completion_ids]
    told = {"completion_ids": completion_ids, "forwards": forwards or [*map(len, completion_ids)], "reveal_step": steps}
    return scorer.score_columns(prompts, completions, told, columns)
