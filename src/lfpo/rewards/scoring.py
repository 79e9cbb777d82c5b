"""Calls reward functions with TRL's signature and checks what they return.

A function that raises or runs too long loses its rewards of that batch; the run continues. A function that returns a
wrong value has a bug: that is a UserError at once.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lfpo.config.errors import UserError
from lfpo.rewards.attempt import attempt

if TYPE_CHECKING:  # tasks are looked up before torch is loaded
    import torch

RewardFunction = Callable[..., Sequence[float | None]]


@dataclass(frozen=True)
class Rewards:
    """The rewards of B completions.

    reward_B: float64 tensor [B] on the CPU, the weighted sum of the parts; a None counts as 0.
    parts: function name -> its B rewards, None where the function does not apply or failed.
    failed: function name -> one line with the reason why it returned no rewards for this batch.
    """

    reward_B: torch.Tensor
    parts: dict[str, list[float | None]]
    failed: dict[str, str] = field(default_factory=dict)


def reward_name(function: RewardFunction) -> str:
    """The function's name, under which its metrics are kept."""
    return getattr(function, "__name__", type(function).__name__)


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
    **kwargs gets only the columns that it names. timeout: seconds for each function (0: no limit).

    A function that raises, or exceeds the timeout, is listed in `failed` and its rewards are None.
    Raises UserError if a function returns the wrong number of rewards or a reward that is neither a finite number nor
    None, if it raises a UserError itself, or if a column has the name of an argument.
    """
    import torch

    if clash := {"prompts", "completions", "completion_ids"} & columns.keys():
        raise UserError(
            f"data column {min(clash)!r} has the name of a reward function's own argument; rename the column"
        )
    reward_B = torch.zeros(len(completions), dtype=torch.float64)
    parts: dict[str, list[float | None]] = {}
    failed: dict[str, str] = {}
    for function, weight in zip(functions, weights, strict=True):
        name = _unused_name(function, parts)
        arguments = accepted(function, {**columns, "completion_ids": completion_ids})
        values: list[float | None] = [None] * len(completions)
        call = partial(function, prompts=prompts, completions=completions, **arguments)
        returned, why = attempt(call, timeout)
        if why is None:
            values = checked(returned, name, len(completions))
        else:
            failed[name] = why
        reward_B += weight * torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
        parts[name] = values
    return Rewards(reward_B, parts, failed)


def measured(functions: Sequence[RewardFunction]) -> dict[str, float]:
    """What functions measure beside their rewards, as `rewards/NAME/KEY`, since this was last called. A collective.

    Such a function, or the one that it wraps, has `counts`, a Counter, which is emptied here, and `measures`, which
    turns the sum of all ranks' counts into metrics.
    """
    from lfpo.base import distributed

    metrics: dict[str, float] = {}
    for function in functions:
        counting: Any = inspect.unwrap(function)
        if (counts := getattr(counting, "counts", None)) is not None:
            total: Counter[str] = sum(distributed.gather(Counter(counts)), Counter())
            counts.clear()
            name = reward_name(function)
            metrics |= {f"rewards/{name}/{key}": value for key, value in counting.measures(total).items()}
    return metrics


def _unused_name(function: RewardFunction, taken: dict[str, Any]) -> str:
    """The function's name, with a number when an earlier function has the same one (two lambdas)."""
    name, number = reward_name(function), 2
    while name in taken:
        name, number = f"{reward_name(function)}_{number}", number + 1
    return name


def accepted(function: RewardFunction, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the function's signature accepts."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {k: v for k, v in arguments.items() if k in parameters}


def checked(values: Any, name: str, expected: int) -> list[float | None]:
    """The returned rewards as floats and None. Raises UserError."""
    import torch

    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise UserError(f"reward function {name!r}: returned {type(values).__name__}, expected a list of numbers")
    if len(values) != expected:
        raise UserError(f"reward function {name!r}: returned {len(values)} rewards for {expected} completions")
    checked: list[float | None] = []
    for i, value in enumerate(values):
        number = value.item() if hasattr(value, "item") else value  # numpy and torch scalars
        if number is not None and not (isinstance(number, int | float) and math.isfinite(number)):
            raise UserError(
                f"reward function {name!r}: reward {i} is {number!r}, expected a finite number, or None "
                "where it does not apply"
            )
        checked.append(None if number is None else float(number))
    return checked
