"""`in_child`: a reward function that runs in a child process with limits on time and memory."""

import inspect
import os
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.plugins import resolve
from lfpo.rewards.child_process import ChildFailed, call, resident_bytes, worker
from lfpo.rewards.scoring import RewardFailed, RewardFunction, reward_name


def in_child(function: RewardFunction | str, *, memory: float = 0.0, seconds: float = 0.0) -> RewardFunction:
    """Wrap a reward function so that each call runs in a child process.

    function: a function at the top of a module, or its dotted path; the child imports it by that path.
    memory: the child's limit in GiB of resident memory (0: none). seconds: the time limit for one batch, including the
    child's start (0: none). A child that exceeds a limit is killed and the call raises RewardFailed; the next batch
    gets a new child. A child that holds more than half of `memory` after a batch is replaced too.
    What the function prints goes to standard error.
    Raises UserError if the function cannot be imported, or if `memory` is set on a system other than Linux.
    """
    path = function if isinstance(function, str) else _dotted_path(function)
    found = resolve(path, {}, kind="reward function")
    name = reward_name(found)
    if memory and not resident_bytes(os.getpid()):
        raise UserError(f"reward function {name!r}: its memory can be bounded on Linux only; leave out reward_memory")
    child = worker(path, seconds, int(memory * 2**30), quiet=False, ends_with_thread=True)

    def reward(**arguments: Any) -> Any:
        try:
            return call(child, **arguments)
        except ChildFailed as error:
            raise RewardFailed(str(error)) from None

    reward.__name__ = name
    reward.__signature__ = inspect.signature(found)  # type: ignore[attr-defined]
    reward.child = child  # type: ignore[attr-defined]
    return reward


def _dotted_path(function: RewardFunction) -> str:
    """`module:name`, by which the child imports the function."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not name.isidentifier() or module == "__main__":
        raise UserError(
            f"reward function {reward_name(function)!r}: a child process can only import a function at the top of a "
            "module; move it to a file of its own, or leave out reward_memory"
        )
    return f"{module}:{name}"
