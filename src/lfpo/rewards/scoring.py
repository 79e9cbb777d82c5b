"""Calling reward functions: TRL's signature, results checked before anything is learned from them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UserError

RewardFunction = Callable[..., Sequence[float | None]]


@dataclass(frozen=True)
class Rewards:
    """total [B]: weighted sum of the parts. parts: function name -> its rewards, None where it does not apply."""

    total: torch.Tensor
    parts: dict[str, list[float | None]]


def reward_name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def score(
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    columns: dict[str, list[Any]],
) -> Rewards:
    """Score B completions. Each function is called as f(prompts, completions, completion_ids=..., **columns).

    Functions that take neither completion_ids nor **kwargs are not given them. Raises UserError naming the function
    when it returns the wrong number of rewards, or something that is not a finite number or None.
    """
    total = torch.zeros(len(completions), dtype=torch.float64)
    parts: dict[str, list[float | None]] = {}
    if clash := {"prompts", "completions", "completion_ids"} & columns.keys():
        raise UserError(
            f"data column {min(clash)!r} has the name of a reward function's own argument; rename the column"
        )
    for function, weight in zip(functions, weights, strict=True):
        name, number = reward_name(function), 2
        while name in parts:  # two lambdas, say
            name, number = f"{reward_name(function)}_{number}", number + 1
        arguments = {**columns, "completion_ids": completion_ids}
        accepted = inspect.signature(function).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            arguments = {k: v for k, v in arguments.items() if k in accepted}
        values = _checked(function(prompts=prompts, completions=completions, **arguments), name, len(completions))
        total += weight * torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
        parts[name] = values
    return Rewards(total, parts)


def _checked(values: Any, name: str, expected: int) -> list[float | None]:
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
