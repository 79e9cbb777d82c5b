"""Rewards: TRL-style functions `f(prompts, completions, **columns) -> list[float | None]`."""

from .scoring import RewardFunction, Rewards, reward_name, score

__all__ = ["RewardFunction", "Rewards", "reward_name", "score"]
