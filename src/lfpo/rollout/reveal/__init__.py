"""Reveal rules: which positions a denoising step reveals. A new rule is a function and a line in `rules`, and its keys
in lfpo.config.reveal; or a dotted path."""

from lfpo.core.rule import Proposal, Reveal, Rule
from lfpo.rollout.reveal.rules import RULES

__all__ = ["RULES", "Reveal", "Rule", "Proposal"]
