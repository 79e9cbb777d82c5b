"""Reward functions that tests name by dotted path."""

import os


def raises(prompts, completions, **columns):
    raise ConnectionError("nobody there")


def even_tokens(prompts, completions, completion_ids, **columns):
    """The share of even token ids: varies between rollouts, also for a random model."""
    return [sum(t % 2 == 0 for t in ids) / max(1, len(ids)) for ids in completion_ids]


def one_right(prompts, completions, **columns):
    """1 for a single rollout of rank 0, so that most prompts have no gradient."""
    return [float(i == 0 and os.environ.get("RANK", "0") == "0") for i in range(len(completions))]
