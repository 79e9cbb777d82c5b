"""Calling reward functions: TRL's signature, results checked before anything is learned from them.

A function may fail on one batch in a thousand (a service that is down, a completion nobody foresaw). That costs its
rewards of that batch, never the run; what it returns wrongly is a bug in it, and told at once.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from lfpo.base.errors import UserError

RewardFunction = Callable[..., Sequence[float | None]]


@dataclass(frozen=True)
class Rewards:
    """total [B]: weighted sum of the parts. parts: function name -> its rewards, None where it does not apply.

    failed: function name -> why it gave none for this batch, one line.
    """

    total: torch.Tensor
    parts: dict[str, list[float | None]]
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        """Whether no function gave any reward, because all failed: there is nothing to learn from."""
        return bool(self.parts) and self.failed.keys() == self.parts.keys()


class RewardFailed(Exception):
    """A function gave no rewards for a batch; the message is the reason to be logged."""


class OverTime(BaseException):
    """A reward function ran too long. No Exception, which a function's own `except Exception` would swallow."""


def reward_name(function: RewardFunction) -> str:
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
    """Score B completions. Each function is called as f(prompts, completions, completion_ids=..., **columns).

    Functions that take neither completion_ids nor **kwargs are not given them. Raises UserError naming the function
    when it returns the wrong number of rewards, or something that is not a finite number or None.
    A function that raises, or runs for more than `timeout` seconds (0: no bound), is listed in `failed`, and all its
    rewards are None. A UserError it raises is passed on.
    """
    total = torch.zeros(len(completions), dtype=torch.float64)
    parts: dict[str, list[float | None]] = {}
    failed: dict[str, str] = {}
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
        values: list[float | None] = [None] * len(completions)
        try:
            with time_limit(timeout):
                returned = function(prompts=prompts, completions=completions, **arguments)
        except UserError:
            raise
        except OverTime:
            failed[name] = f"it ran for more than {timeout:g} s"
        except RewardFailed as error:
            failed[name] = str(error)
        except Exception as error:  # the user's own code: whatever it raises must not end a week of training
            failed[name] = _last_line(error)
        else:
            values = _checked(returned, name, len(completions))
        total += weight * torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64)
        parts[name] = values
    return Rewards(total, parts, failed)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt what runs in here after `seconds` (0: never), and again each second until it gives in.

    By SIGALRM, so waiting for a child process or a socket ends too; one call into C that never returns does not.
    Python delivers signals to the main thread alone: elsewhere, and where there is no such signal, nothing is bounded.
    """
    if not seconds or os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return

    open_ = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if open_:
            raise OverTime

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            yield
        finally:
            open_ = False  # from here on no alarm raises; one that comes just before ends up in the outer block
    finally:
        open_ = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _last_line(error: Exception) -> str:
    """The last line of the traceback and where it came from."""
    said = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else said


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
