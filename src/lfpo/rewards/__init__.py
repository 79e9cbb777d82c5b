"""Rewards: functions with TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`."""

from lfpo.core.scoring import RewardFunction, Rewards
from lfpo.rewards.child_process import in_child
from lfpo.rewards.names import reward_name, reward_names

__all__ = ["RewardFunction", "Rewards", "in_child", "reward_name", "reward_names"]
