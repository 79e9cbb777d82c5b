"""Reward functions that go wrong, named by dotted path in tests."""

from __future__ import annotations


def wrong_length(prompts, completions, **columns):
    return [1.0]


def not_a_number(prompts, completions, **columns):
    return [float("nan")] * len(completions)
