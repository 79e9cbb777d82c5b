"""A reward function in a process of its own, which can be killed: bounded in memory, and in time whatever it calls."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.plugins import resolve
from lfpo.rewards.child import Child, Unanswered, resident
from lfpo.rewards.scoring import RewardFailed, RewardFunction, reward_name

WORKER = Path(__file__).with_name("child_reward_worker.py")


def in_child(function: RewardFunction | str, *, memory: float = 0.0, seconds: float = 0.0) -> RewardFunction:
    """A reward function that has `function` called in a child process, which imports it by its name.

    function: one at the top of a module, or its dotted path. memory: GiB that the child may hold. seconds: that a batch
    may take, the child's start included. 0 is no bound. Past either the child is killed, the batch's rewards of this
    function count as None, and the next batch gets a new child; so it does once the child holds more than half of
    `memory`. What the function prints goes to standard error. Raises UserError for a function that cannot be imported.
    """
    path = function if isinstance(function, str) else _path(function)
    found = resolve(path, {}, kind="reward function")
    name = reward_name(found)
    if memory and not resident(os.getpid()):
        raise UserError(f"reward function {name!r}: its memory can be bounded on Linux only; leave out reward_memory")
    places = [os.path.abspath(place) for place in sys.path]  # "" is the folder that the command runs in
    child = Child(
        [sys.executable, "-P", str(WORKER), path],
        seconds,
        int(memory * 2**30),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        quiet=False,
    )

    def reward(**arguments: Any) -> Any:
        data = pickle.dumps(arguments)
        try:
            answer = child.ask(len(data), data)
        except Unanswered as error:
            raise RewardFailed(str(error)) from None
        if "refused" in answer:
            raise UserError(answer["refused"])
        if "raised" in answer:
            raise RewardFailed(answer["raised"])
        return answer["values"]

    reward.__name__ = name
    reward.__signature__ = inspect.signature(found)  # type: ignore[attr-defined]
    reward.child = child  # type: ignore[attr-defined]
    return reward


def _path(function: RewardFunction) -> str:
    """By which name the child finds a function."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not name.isidentifier() or module == "__main__":
        raise UserError(
            f"reward function {reward_name(function)!r}: a child process can only import a function at the top of a "
            "module; move it to a file of its own, or leave out reward_memory"
        )
    return f"{module}:{name}"
