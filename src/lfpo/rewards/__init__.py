"""Rewards: functions with TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`."""

from collections.abc import Sequence
from typing import Any

from lfpo.core.scoring import RewardFunction, Rewards, score_named
from lfpo.rewards.child_process import in_child
from lfpo.rewards.names import reward_name, reward_names


def score(functions: Sequence[RewardFunction], *rest: Any, **options: Any) -> Rewards:
    """lfpo.core.scoring.score_named of functions that are named here."""
    return score_named(dict(zip(reward_names(functions), functions, strict=True)), *rest, **options)


__all__ = ["RewardFunction", "Rewards", "in_child", "reward_name", "reward_names", "score"]
