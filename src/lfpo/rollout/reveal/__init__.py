"""Reveal rules: which positions a denoising step reveals. A new rule is a new file and a line in REVEAL_RULES, or a
dotted path."""

from __future__ import annotations

from lfpo.base.errors import UserError
from lfpo.base.plugins import resolve
from lfpo.rollout.reveal.rule import Reveal, Rule, Step

REVEAL_RULES: dict[str, str] = {
    "low_confidence": "lfpo.rollout.reveal.llada:LOW_CONFIDENCE",
    "random": "lfpo.rollout.reveal.llada:RANDOM",
    "low_confidence_static": "lfpo.rollout.reveal.block_diffusion:STATIC",
    "low_confidence_dynamic": "lfpo.rollout.reveal.block_diffusion:DYNAMIC",
    "sequential": "lfpo.rollout.reveal.block_diffusion:SEQUENTIAL",
    "origin": "lfpo.rollout.reveal.origin:ORIGIN",
    "maskgit_plus": "lfpo.rollout.reveal.dream:MASKGIT_PLUS",
    "topk_margin": "lfpo.rollout.reveal.dream:TOPK_MARGIN",
    "entropy": "lfpo.rollout.reveal.dream:ENTROPY",
    "threshold": "lfpo.rollout.reveal.threshold:THRESHOLD",
    "factor": "lfpo.rollout.reveal.factor:FACTOR",
    "entropy_bound": "lfpo.rollout.reveal.entropy_bound:ENTROPY_BOUND",
}


def find_rule(name: str) -> Rule:
    """The reveal rule of this name or dotted path; a plain function becomes `Rule(function)`.

    Raises UserError for an unknown name, a path that leads nowhere, or an object that is neither.
    """
    found = resolve(name, REVEAL_RULES, kind="rule")
    if isinstance(found, Rule):
        return found
    if not callable(found):
        raise UserError(f"rule {name!r}: expected a function or a Rule, found {type(found).__name__}")
    return Rule(found)


__all__ = ["REVEAL_RULES", "Reveal", "Rule", "Step", "find_rule"]
