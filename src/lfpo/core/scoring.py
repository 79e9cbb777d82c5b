"""Calls reward functions with TRL's signature and checks what they return.

A function that raises or runs too long loses its rewards of that batch; the run continues. A function that returns a
wrong value has a bug: that is a UserError at once. Functions get copies: what they do to them changes no row.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.torch_state import torch_state_kept
from lfpo.core.attempts import attempt
from lfpo.core.messages import prefill
from lfpo.core.reward_values import checked

if TYPE_CHECKING:  # tasks are looked up before torch is loaded
    import torch

RewardFunction = Callable[..., Sequence[float | None]]
Row = Json  # one example: a prompt, and columns for the reward functions

# What functions may ask for of each rollout, by the name of a parameter: the token ids of its completion, the forwards
# that were run for it, and the scheduled step that revealed each of the tokens.
ROLLOUT_ARGUMENTS = ("completion_ids", "forwards", "reveal_step")


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

    @property
    def parts_BK(self) -> torch.Tensor:
        """The rewards of the K functions, float64 [B, K] on the CPU; NaN where there is none."""
        columns = [[math.nan if v is None else v for v in values] for values in self.parts.values()]
        return self.reward_B.new_tensor(columns).view(-1, len(self.reward_B)).T


@dataclass(frozen=True)
class Scorer:
    """How completions are scored. functions: by name. weights: theirs. timeout: seconds that each may take for a batch
    (0: no limit). metrics: gives what the functions measured since its last call, a collective (lfpo.rewards.measured).
    """

    functions: Mapping[str, RewardFunction]
    weights: Sequence[float]
    timeout: float = 0.0
    metrics: Callable[[], dict[str, float]] = dict

    def score(self, rows: Sequence[Row], texts: Sequence[str], of_rollouts: Json) -> Rewards:
        """The rewards of b completions of b rows. of_rollouts: see `score_columns`."""
        prompts = [without_prefill(row["prompt"]) for row in rows]
        return self.score_columns(prompts, as_completions(rows, texts), of_rollouts, columns_of(rows))

    def score_columns(
        self, prompts: Sequence[object], completions: Sequence[object], of_rollouts: Json, columns: Json
    ) -> Rewards:
        """Score b completions with each function, called as f(prompts, completions, completion_ids=..., **columns).

        of_rollouts: b values of each of ROLLOUT_ARGUMENTS. columns: name -> b values. A function gets copies of the
            arguments that it names, or of all if it takes **kwargs.

        A function that raises, or exceeds the timeout, is listed in `failed` and its rewards are None.
        Raises UserError for what is no list of b rewards (see `checked`), where a function raises one, and for a column
        with the name of an argument.
        """
        import torch

        own_names = {"prompts": prompts, "completions": completions, **of_rollouts}
        if clash := own_names.keys() & columns.keys():
            raise UserError(f"data column {min(clash)!r} has the name of a reward function's own argument; rename it")
        parts, failed = dict[str, list[float | None]](), dict[str, str]()
        for name, function in self.functions.items():
            arguments = accepted(function, {**own_names, **columns})
            call = partial(function, **{key: copied(values) for key, values in arguments.items()})
            own = str(getattr(function, "__module__", "")).startswith("lfpo.")  # lfpo's own leave torch as it is
            with nullcontext() if own else torch_state_kept():
                returned, why = attempt(call, self.timeout, partial(checked, name=name, expected=len(completions)))
            if why is not None:
                failed[name] = why
            parts[name] = [None] * len(completions) if returned is None else returned
        rewards = [weighted_sum(row, self.weights) for row in zip(*parts.values(), strict=True)]
        rewards = rewards or [math.nan] * len(completions)  # without functions
        return Rewards(torch.tensor(rewards, dtype=torch.float64), parts, failed)


def without_prefill(prompt: str | list[Json]) -> Any:
    """A prompt as reward functions get it: without the beginning of the answer, which is in the completion."""
    return prompt if isinstance(prompt, str) or prompt[-1]["role"] != "assistant" else prompt[:-1]


def as_completions(rows: Sequence[Row], texts: Sequence[str]) -> list[str | list[Json]]:
    """Texts as reward functions get them. As in TRL, a prompt of messages gets a completion of messages, the whole turn
    of the assistant with the beginning that the prompt has."""
    return [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": prefill(row["prompt"]) + text}]
        for row, text in zip(rows, texts, strict=True)
    ]


def columns_of(rows: Sequence[Row]) -> Json:
    """Every column but the prompt, as name -> list of values, as reward functions get them."""
    return {n: [row[n] for row in rows] for n in rows[0] if n != "prompt"}


def weighted_sum(values: Sequence[float | None], weights: Sequence[float]) -> float:
    """A completion's reward: over the functions that gave a number, as in TRL; NaN if none did."""
    terms = [weight * value for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(terms) if terms else math.nan


def copied(values: Sequence[object]) -> list[Any]:
    """Copies for one function. Each item is copied by itself: rollouts of a prompt have the same row, and a function
    that edits one of them must not see its edit in the others."""
    return [copy.deepcopy(value) for value in values]


def accepted(function: RewardFunction, arguments: Json) -> Json:
    """The arguments that the function's signature accepts."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {k: v for k, v in arguments.items() if k in parameters}
