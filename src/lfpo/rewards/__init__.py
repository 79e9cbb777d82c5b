"""Rewards: TRL-style functions `f(prompts, completions, **columns) -> list[float | None]`."""

from lfpo.rewards.child_reward import in_child
from lfpo.rewards.scoring import RewardFunction, Rewards, reward_name, score

__all__ = ["RewardFunction", "Rewards", "in_child", "reward_name", "score"]
