"""Calls reward functions with TRL's signature and checks what they return.

A function that raises or runs too long loses its rewards of that batch; the run continues. A function that returns a
wrong value has a bug: that is a UserError at once. Functions get copies: what they do to them changes no row.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import pickle
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.core.attempts import attempt
from lfpo.core.messages import prefill
from lfpo.core.reward_number import NotANumber, number

if TYPE_CHECKING:  # tasks are looked up before torch is loaded
    import torch

RewardFunction = Callable[..., Sequence[float | None]]
Row = Json  # one example: a prompt, and columns for the reward functions


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


@dataclass(frozen=True)
class Scorer:
    """How completions are scored. functions: by name. weights: theirs. timeout: seconds that each may take for a batch
    (0: no limit). metrics: gives what the functions measured since its last call, a collective (lfpo.rewards.measured).
    """

    functions: Mapping[str, RewardFunction]
    weights: Sequence[float]
    timeout: float
    metrics: Callable[[], dict[str, float]] = dict

    def score(self, rows: Sequence[Row], texts: Sequence[str], completion_ids: list[list[int]]) -> Rewards:
        """The rewards of b completions of b rows."""
        prompts, completions, columns = reward_arguments(rows, texts)
        return score_named(self.functions, self.weights, prompts, completions, completion_ids, columns, self.timeout)


def reward_arguments(rows: Sequence[Row], texts: Sequence[str]) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
    """Prompts, completions and columns of b rows as reward functions get them."""
    return [without_prefill(row["prompt"]) for row in rows], as_completions(rows, texts), columns_of(rows)


def without_prefill(prompt: Any) -> Any:
    """A prompt as reward functions get it: without the beginning of the answer, which is in the completion."""
    return prompt if isinstance(prompt, str) or prompt[-1]["role"] != "assistant" else prompt[:-1]


def as_completions(rows: Sequence[Row], texts: Sequence[str]) -> list[Any]:
    """Texts as reward functions get them. As in TRL, a prompt of messages gets a completion of messages, the whole turn
    of the assistant with the beginning that the prompt has."""
    return [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": prefill(row["prompt"]) + text}]
        for row, text in zip(rows, texts, strict=True)
    ]


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Every column but the prompt, as name -> list of values, as reward functions get them.

    Raises UserError if the rows have different columns.
    """
    names = [n for n in rows[0] if n != "prompt"]
    for row in rows:
        if row.keys() != rows[0].keys():
            raise UserError(
                f"rows differ in their columns: {sorted(rows[0])} and {sorted(row)}; give every row the same"
            )
    return {n: [row[n] for row in rows] for n in names}


def score_named(
    functions: Mapping[str, RewardFunction],
    weights: Sequence[float],
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    columns: dict[str, list[Any]],
    timeout: float = 0.0,
) -> Rewards:
    """Score b completions with each function, called as f(prompts, completions, completion_ids=..., **columns).

    functions: by name. weights: one for each function. completion_ids: b lists of token ids. columns: name -> b values;
    a function without **kwargs gets only the columns that it names. timeout: seconds for each function (0: no limit).
    Each function gets copies of all of these.

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
    for name, function in functions.items():
        arguments = {"prompts": prompts, "completions": completions}
        arguments |= accepted(function, {**columns, "completion_ids": completion_ids})
        call = partial(function, **{key: copied(values) for key, values in arguments.items()})
        returned, why = attempt(call, timeout, partial(checked, name=name, expected=len(completions)))
        if why is not None:
            failed[name] = why
        parts[name] = [None] * len(completions) if returned is None else returned
    rewards = [weighted_sum(row, weights) for row in zip(*parts.values(), strict=True)] or [math.nan] * len(completions)
    if math.inf in map(abs, rewards):
        row = [abs(r) for r in rewards].index(math.inf)
        listed = ", ".join(f"{name} {values[row]}" for name, values in parts.items())
        raise UserError(
            f"reward_weights: the weighted sum of completion {row}'s rewards ({listed}) is beyond the range of float; "
            "return smaller rewards"
        )
    return Rewards(torch.tensor(rewards, dtype=torch.float64), parts, failed)


def weighted_sum(values: Sequence[float | None], weights: Sequence[float]) -> float:
    """A completion's reward: over the functions that gave a number, as in TRL; NaN if none did, inf if too large."""
    terms = [weight * value for value, weight in zip(values, weights, strict=True) if value is not None]
    if not all(map(math.isfinite, terms)):
        return math.inf  # also for opposite infinities, whose sum would be NaN
    return sum(terms) if terms else math.nan


def copied(values: Sequence[Any]) -> list[Any]:
    """Copies for one function. Each item is copied by itself: rollouts of a prompt have the same row, and a function
    that edits one of them must not see its edit in the others."""

    def copy_of(value: object) -> Any:
        try:
            return copy.deepcopy(value)
        except (TypeError, RuntimeError, copy.Error, pickle.PicklingError):  # a lock, an open file, a generator
            return value

    return [copy_of(value) for value in values]


def accepted(function: RewardFunction, arguments: Json) -> Json:
    """The arguments that the function's signature accepts."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {k: v for k, v in arguments.items() if k in parameters}


def checked(values: object, name: str, expected: int) -> list[float | None]:
    """The rewards that function `name` returned for so many completions, as floats, and None where it gave none.

    values: anything that gives its items in order: a list, tuple, generator, array, tensor on any device, pandas
        Series, view of a dict. An item is a number that float holds, or an array of one (see lfpo.core.reward_number).
    Raises UserError, in one sentence with the function and the item's index, for anything else.
    """
    what = f"reward function {name!r}"
    if hasattr(values, "detach"):  # a tensor: one copy from the device, not one for each item
        values = values.detach().cpu()
    # A mapping gives its keys, and a set has no order: both would score the wrong completions without a word.
    wrong = isinstance(values, str | bytes | bytearray | Mapping | Set) and not isinstance(values, KeysView)
    if wrong or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise UserError(f"{what}: returned {type(values).__name__}, expected a list of numbers")
    items = list(itertools.islice(values, expected + 1))  # a generator may have no end
    if len(items) != expected:
        counted = "more" if len(items) > expected else str(len(items))
        if isinstance(values, Sized):
            counted = str(len(values))
        raise UserError(f"{what}: returned {counted} rewards for {expected} completions")
    rewards: list[float | None] = []
    for i, item in enumerate(items):
        try:
            plain = item is None or (type(item) is float and math.isfinite(item))  # what most functions give
            rewards.append(item if plain else number(item))
        except NotANumber as error:
            raise UserError(
                f"{what}: reward {i} is {error}, expected a finite number, or None where it does not apply"
            ) from None
    return rewards
