"""Rewards: functions with TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`."""

from lfpo.rewards.child_process import in_child
from lfpo.rewards.scoring import RewardFunction, Rewards, reward_name, score

__all__ = ["RewardFunction", "Rewards", "in_child", "reward_name", "score"]
