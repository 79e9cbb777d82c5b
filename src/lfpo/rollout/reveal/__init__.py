"""Reveal rules: which positions a denoising step reveals. A new rule is a function and a line in REVEAL_RULES, or a
dotted path."""

from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.rollout.reveal.rule import Proposal, Reveal, Rule
from lfpo.rollout.reveal.rules import REVEAL_RULES


def find_rule(name: str) -> Rule:
    """The reveal rule of this name or dotted path; a plain function becomes `Rule(function)`.

    Raises UserError for an unknown name, a path that leads nowhere, or an object that is neither.
    """
    found = REVEAL_RULES.get(name) or resolve(name, dict.fromkeys(REVEAL_RULES, ""), kind="rule")
    if isinstance(found, Rule):
        return found
    if not callable(found):
        raise UserError(f"rule {name!r}: expected a function or a Rule, found {type(found).__name__}")
    return Rule(found)


__all__ = ["REVEAL_RULES", "Proposal", "Reveal", "Rule", "find_rule"]
