"""Threshold decoding (Fast-dLLM, arXiv 2505.22618)."""

from __future__ import annotations

from typing import Any

from lfpo.rollout.reveal.ranking import ranked
from lfpo.rollout.reveal.rule import Reveal, Rule, Step


def check(sampler: Any) -> None:
    if sampler.threshold is None or not 0 < sampler.threshold <= 1:
        raise ValueError(f"threshold {sampler.threshold} must be above 0 and at most 1")


def reveal(step: Step) -> Reveal:
    """Positions with confidence >= threshold, and always each row's most confident one."""
    _, rank = ranked(step.confidence, step.eligible)
    return Reveal(step.eligible & ((step.confidence >= step.sampler.threshold) | (rank == 0)))


THRESHOLD = Rule(reveal, check, reads=("threshold",), schedule=None)
