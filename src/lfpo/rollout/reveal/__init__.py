"""Reveal rules: which positions a denoising step reveals. A new rule is a function and a line in `rules`, and its keys
in lfpo.config.reveal; or a dotted path."""

from lfpo.config.reveal import own_rule
from lfpo.rollout.reveal.rule import Proposal, Reveal, Rule
from lfpo.rollout.reveal.rules import RULES


def find_rule(name: str) -> Rule:
    """The reveal rule of this name or dotted path (SamplerConfig.rule_name); a plain function becomes `Rule(function)`.

    Raises UserError for an unknown name, a path that leads nowhere, or an object that is neither.
    """
    rule = RULES.get(name) or own_rule(name)
    return rule if isinstance(rule, Rule) else Rule(rule)


__all__ = ["RULES", "Reveal", "Rule", "Proposal", "find_rule"]
