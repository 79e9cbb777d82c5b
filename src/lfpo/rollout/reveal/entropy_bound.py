"""Entropy-bounded decoding (EB-Sampler, arXiv 2505.24857)."""

from __future__ import annotations

from typing import Any

from lfpo.rollout.reveal.ranking import before_first, ranked
from lfpo.rollout.reveal.rule import Reveal, Rule, Step


def check(sampler: Any) -> None:
    if sampler.entropy_bound is None or not sampler.entropy_bound >= 0:
        raise ValueError(f"entropy_bound {sampler.entropy_bound} must not be negative")


def reveal(step: Step) -> Reveal:
    """The n positions of least entropy, for the largest n whose entropies, without the largest, sum to at most
    entropy_bound."""
    order, rank = ranked(-step.entropy, step.eligible)
    ordered = step.entropy.gather(1, order)
    others = ordered.cumsum(-1) - ordered  # ascending, so the n-th is the largest; 0 for the first
    return Reveal(step.eligible & (rank < before_first(others > step.sampler.entropy_bound)[:, None]))


ENTROPY_BOUND = Rule(reveal, check, reads=("entropy_bound",), schedule=None)
