"""Reveal rules of users, by dotted path: what they return is checked at each step."""

import dataclasses
from collections.abc import Callable

import torch

from lfpo.config.errors import UserError
from lfpo.config.reveal import own_rule
from lfpo.core.rule import Proposal, Reveal, Rule


def checked_rule(name: str) -> Rule:
    """The reveal rule at a dotted path; a plain function becomes `Rule(function)`. Raises UserError for a path that
    leads nowhere, an object that is no rule, and, at the step that does so, for a rule that returns no Reveal of the
    Proposal's shapes, which could be broadcast to them."""
    own = own_rule(name)
    rule = own if isinstance(own, Rule) else Rule(own)
    return dataclasses.replace(rule, reveal=_checked(name, rule.reveal))


def _checked(name: str, function: Callable[[Proposal], Reveal]) -> Callable[[Proposal], Reveal]:
    """The function, with what it returns checked."""

    def reveal(step: Proposal) -> Reveal:
        decided = function(step)
        if not isinstance(decided, Reveal):
            raise UserError(f"rule {name!r} returned {type(decided).__name__}, expected a Reveal (lfpo.rollout.reveal)")
        rows = step.eligible.shape[:1]
        for field, shape, dtype in (
            ("positions", step.eligible.shape, torch.bool),
            ("at_step", rows, torch.int64),
            ("edits", step.eligible.shape, torch.bool),
            ("unfinished", rows, torch.bool),
        ):
            value = getattr(decided, field)
            if value is None and field != "positions":
                continue
            if not isinstance(value, torch.Tensor) or value.shape != shape or value.dtype != dtype:
                is_tensor = isinstance(value, torch.Tensor)
                found = f"{list(value.shape)} {value.dtype}" if is_tensor else type(value).__name__
                raise UserError(f"rule {name!r}: {field} must be a tensor {list(shape)} {dtype}, found {found}")
        return decided

    return reveal
