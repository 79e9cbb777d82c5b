"""Calls reward functions with TRL's signature and checks what they return.

A function that raises or runs too long loses its rewards of that batch; the run continues. A function that returns a
wrong value has a bug: that is a UserError at once. Functions get copies: what they do to them changes no row.
"""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lfpo.config.errors import UserError
from lfpo.rewards.attempt import attempt
from lfpo.rewards.names import reward_names
from lfpo.rewards.values import checked

if TYPE_CHECKING:  # tasks are looked up before torch is loaded
    import torch

RewardFunction = Callable[..., Sequence[float | None]]


@dataclass(frozen=True)
class Rewards:
    """The rewards of B completions.

    reward_B: float64 tensor [B] on the CPU, the weighted sum over the functions that gave a number. NaN is neutral: no
        function gave one, and nothing is to be learned from this completion.
    parts: function name -> its B rewards, None where the function does not apply or failed.
    failed: function name -> one line with the reason why it returned no rewards for this batch.
    """

    reward_B: torch.Tensor
    parts: dict[str, list[float | None]]
    failed: dict[str, str] = field(default_factory=dict)


def score(
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    columns: dict[str, list[Any]],
    timeout: float = 0.0,
) -> Rewards:
    """Score b completions with each function, called as f(prompts, completions, completion_ids=..., **columns).

    weights: one for each function. completion_ids: b lists of token ids. columns: name -> b values; a function without
    **kwargs gets only the columns that it names. timeout: seconds for each function (0: no limit). Each function gets
    copies of all of these.

    A function that raises, or exceeds the timeout, is listed in `failed` and its rewards are None.
    Raises UserError if a function returns the wrong number of rewards or a reward that is neither a finite number nor
    None, if it raises a UserError itself, if a column has the name of an argument, or if a weighted sum is beyond the
    range of float.
    """
    import torch

    if clash := {"prompts", "completions", "completion_ids"} & columns.keys():
        raise UserError(
            f"data column {min(clash)!r} has the name of a reward function's own argument; rename the column"
        )
    parts: dict[str, list[float | None]] = {}
    failed: dict[str, str] = {}
    for function, name in zip(functions, reward_names(functions), strict=True):
        arguments = {"prompts": prompts, "completions": completions}
        arguments |= accepted(function, {**columns, "completion_ids": completion_ids})
        call = partial(function, **{key: copied(values) for key, values in arguments.items()})
        returned, why = attempt(partial(_checked_call, call, name, len(completions)), timeout)
        if why is not None:
            failed[name] = why
        parts[name] = [None] * len(completions) if returned is None else returned
    rewards = [weighted_sum(row, weights) for row in zip(*parts.values(), strict=True)] or [math.nan] * len(completions)
    if math.inf in map(abs, rewards):
        row = [abs(r) for r in rewards].index(math.inf)
        given = ", ".join(f"{name} {values[row]}" for name, values in parts.items())
        raise UserError(
            f"reward_weights: the weighted sum of completion {row}'s rewards ({given}) is beyond the range of float; "
            "return smaller rewards"
        )
    return Rewards(torch.tensor(rewards, dtype=torch.float64), parts, failed)


def _checked_call(call: Callable[[], Any], name: str, expected: int) -> list[float | None]:
    """Both in one attempt: a generator runs, and may raise, only while its values are read."""
    return checked(call(), name, expected)


def weighted_sum(values: Sequence[float | None], weights: Sequence[float]) -> float:
    """A completion's reward: over the functions that gave a number, as in TRL; NaN if none did, inf if too large."""
    terms = [weight * value for value, weight in zip(values, weights, strict=True) if value is not None]
    if not all(map(math.isfinite, terms)):
        return math.inf  # also for opposite infinities, whose sum would be NaN
    return sum(terms) if terms else math.nan


def copied(values: Sequence[Any]) -> list[Any]:
    """Copies for one function. Each item is copied by itself: rollouts of a prompt have the same row, and a function
    that edits one of them must not see its edit in the others."""

    def copy_of(value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except (TypeError, RuntimeError, copy.Error, pickle.PicklingError):  # a lock, an open file, a generator
            return value

    return [copy_of(value) for value in values]


def measured(functions: Sequence[RewardFunction]) -> dict[str, float]:
    """What functions measure beside their rewards, as `rewards/NAME/KEY`, since this was last called. A collective.

    Such a function, or the one that it wraps, has `counts`, a Counter, which is emptied here, and `measures`, which
    turns the sum of all ranks' counts into metrics. Raises UserError for a KEY that its rewards use.
    """
    from lfpo.base import distributed

    metrics: dict[str, float] = {}
    for function, name in zip(functions, reward_names(functions), strict=True):
        counting: Any = inspect.unwrap(function.func if isinstance(function, partial) else function)
        counts = getattr(counting, "counts", None)
        if isinstance(counts, Counter) and callable(getattr(counting, "measures", None)):
            total: Counter[str] = sum(distributed.gather(Counter(counts)), Counter())
            counts.clear()
            own = counting.measures(total)
            if clash := {"mean", "failed"} & own.keys():
                raise UserError(
                    f"reward function {name!r}: `measures` gives {min(clash)!r}, which its rewards have too"
                )
            metrics |= {f"rewards/{name}/{key}": value for key, value in own.items()}
    return metrics


def accepted(function: RewardFunction, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the function's signature accepts."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {k: v for k, v in arguments.items() if k in parameters}
