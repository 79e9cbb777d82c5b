"""Rewards: TRL-style functions `f(prompts, completions, **columns) -> list[float | None]`."""

from .child_reward import in_child
from .scoring import RewardFunction, Rewards, reward_name, score

__all__ = ["RewardFunction", "Rewards", "in_child", "reward_name", "score"]
