"""What reward functions measure beside their rewards."""

import inspect
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from lfpo.core import collectives
from lfpo.core.scoring import RewardFunction


def wrapped(function: RewardFunction) -> Any:
    """The function, or the innermost one that it wraps."""
    return inspect.unwrap(function.func if isinstance(function, partial) else function)


def measures(function: RewardFunction) -> bool:
    """Whether `measured` asks the function."""
    return callable(getattr(wrapped(function), "measures", None))


def measured(functions: Mapping[str, RewardFunction]) -> dict[str, float]:
    """What functions measure beside their rewards, as `rewards/NAME/KEY`, since this was last called. A collective.

    Such a function, or the one that it wraps, has `counts`, a Counter, which is emptied here, and `measures`, which
    turns the sum of all ranks' counts into metrics.
    """
    metrics: dict[str, float] = {}
    for name, function in functions.items():
        if not measures(function):
            continue
        counting = wrapped(function)
        counts = counting.counts
        total: Counter[str] = sum(collectives.gather(Counter(counts)), Counter())
        counts.clear()
        own = counting.measures(total)
        metrics |= {f"rewards/{name}/{key}": value for key, value in own.items()}
    return metrics
