"""Factor decoding (Fast-dLLM, arXiv 2505.22618): the more positions a step reveals, the higher the bound."""

from __future__ import annotations

from typing import Any

from lfpo.rollout.reveal.ranking import before_first, ranked
from lfpo.rollout.reveal.rule import Reveal, Rule, Step


def check(sampler: Any) -> None:
    if sampler.factor is None or not sampler.factor > 0:
        raise ValueError(f"factor {sampler.factor} must be above 0")


def reveal(step: Step) -> Reveal:
    """The n most confident positions, for the largest n whose n-th has confidence >= 1 - factor / (n + 1).

    At least one. Fast-dLLM's code also reveals the next position, which fails this test.
    """
    import torch

    order, rank = ranked(step.confidence, step.eligible)
    ordered = step.confidence.gather(1, order)
    n = torch.arange(1, ordered.shape[1] + 1, device=ordered.device)
    fails = ordered < 1 - step.sampler.factor / (n + 1)
    fails[:, 0] = False
    return Reveal(step.eligible & (rank < before_first(fails)[:, None]))


FACTOR = Rule(reveal, check, reads=("factor",), schedule=None)
