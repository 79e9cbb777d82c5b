"""Names of reward functions, under which metrics, records and messages keep them."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any


def reward_name(function: Callable[..., object]) -> str:
    """A function's short name: its own, that of the function in a partial, or of a callable object's class."""
    if isinstance(function, functools.partial):
        return reward_name(function.func)
    name = getattr(function, "__name__", None)
    if name == "__call__" and inspect.ismethod(function):
        owner: Any = function.__self__
        return reward_name(owner)
    return name if isinstance(name, str) and name else type(function).__name__


def reward_names(functions: Sequence[Callable[..., object]]) -> list[str]:
    """A distinct name for each of a run's functions.

    The short name where no other function has it. Else with what tells functions apart: a partial's arguments, the
    class of a method's object, the fields of an object that differ, or the module. A number where that is equal too, or
    only signs differ, which some trackers replace. The same on every rank and after a resume, so no name holds an
    address.
    """
    short = [reward_name(function) for function in functions]
    times = Counter(short)
    telling = [long_name(f, functions) if times[name] > 1 else name for f, name in zip(functions, short, strict=True)]
    names: list[str] = []
    for name, plain in zip(telling, short, strict=True):
        if telling.count(name) == short.count(plain) and times[plain] > 1:
            name = plain  # what was added is the same for all of them
        # A slash separates the parts of a metric's name.
        name = " ".join(name.replace("/", "-").split())
        unique, n = name, 2
        while tracked_name(unique) in map(tracked_name, names):
            unique, n = f"{name}_{n}", n + 1
        names.append(unique)
    return names


def tracked_name(name: str) -> str:
    """What is left of a name where a tracker replaces its signs, as tensorboardX does."""
    return re.sub(r"[^\w.-]", "_", name)


def long_name(function: Callable[..., object], others: Sequence[Callable[..., object]]) -> str:
    """The short name with what tells a function from others of its short name."""
    name = reward_name(function)
    if isinstance(function, functools.partial):
        parts = [*map(_text, function.args), *(f"{key}={_text(value)}" for key, value in function.keywords.items())]
        return f"{name}({','.join(part for part in parts if part)})" if any(parts) else long_name(function.func, others)
    if inspect.ismethod(function):
        owner = function.__self__
        same = [f.__self__ for f in others if inspect.ismethod(f) and reward_name(f) == name]
        kind = owner if isinstance(owner, type) else type(owner)
        return f"{kind.__name__}{_fields(owner, same)}.{name}"
    if not inspect.isroutine(function):
        return name + _fields(function, [f for f in others if reward_name(f) == name])
    module = getattr(inspect.unwrap(function), "__module__", None)
    return f"{module}.{name}" if module else name


def _fields(owner: object, same: Sequence[object]) -> str:
    """The simple public fields of an object in which it differs from others of its class, as `(key=value)`."""
    texts = {key: _text(value) for key, value in getattr(owner, "__dict__", {}).items() if not key.startswith("_")}
    other_fields = [getattr(other, "__dict__", {}) for other in same]
    differ = [f"{k}={text}" for k, text in texts.items() if text and any(_text(o.get(k)) != text for o in other_fields)]
    return f"({','.join(differ[:3])})" if differ else ""


def _text(value: object) -> str:
    """A value in a name: "" for one that has no short form of its own, such as a loaded model."""
    if isinstance(value, str | int | float | bool) and len(str(value)) <= 40:
        return str(value)
    return reward_name(value) if inspect.isroutine(value) else ""
