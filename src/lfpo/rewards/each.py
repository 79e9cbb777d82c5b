"""`each`: a reward function of a batch, from a function that grades one completion."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from lfpo.rewards.answers import completion_text


def each(grade: Callable[..., float | None]) -> Callable[..., list[Any]]:
    """The reward function f(prompts, completions, **columns) that calls `grade(text, **columns of the row)` on each.

    text: the completion's text. The other parameters of `grade` are the columns that it needs. None stays None.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = list(inspect.signature(grade).parameters)[1:]
    parameters = [inspect.Parameter(name, kind) for name in ("prompts", "completions", *names)]
    signature = inspect.Signature([*parameters, inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD)])

    @functools.wraps(grade)
    def reward(*arguments: object, **columns: object) -> list[float | None]:
        batch = signature.bind(*arguments, **columns).arguments
        rows = zip(batch["completions"], *(batch[name] for name in names), strict=True)
        values = [grade(completion_text(completion), *row) for completion, *row in rows]
        return [None if value is None else float(value) for value in values]

    reward.__signature__ = signature  # type: ignore[attr-defined]
    return reward
