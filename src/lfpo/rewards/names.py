"""Names of reward functions, under which metrics, records and messages keep them."""

import functools
from collections.abc import Callable, Sequence


def reward_name(function: Callable[..., object]) -> str:
    """The `__name__` of a function, that of the function in a partial, or of a callable object's class."""
    if isinstance(function, functools.partial):
        return reward_name(function.func)
    return str(getattr(function, "__name__", "") or type(function).__name__)


def reward_names(functions: Sequence[Callable[..., object]]) -> list[str]:
    """A distinct name for each of a run's functions: those of one name are numbered in their order. The same on every
    rank and after a resume. Set `function.__name__` for a name of your own."""
    names: list[str] = []
    for function in functions:
        name = unique = reward_name(function)
        number = 2
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return names
