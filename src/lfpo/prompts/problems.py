"""Checks of what a command trains or measures on (see lfpo.config.data): one source of prompts, functions that can be
called."""

import inspect
from collections.abc import Sequence

from lfpo.config.data import ProblemConfig
from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.core.scoring import ROLLOUT_ARGUMENTS
from lfpo.prompts.tasks import Row
from lfpo.rewards import RewardFunction, reward_name


def check_source(
    args: ProblemConfig, functions: Sequence[object], dataset: object = None, environment: object = None
) -> None:
    """Raise UserError unless the settings, or rows given in Python (`dataset`), are one source of prompts, with reward
    functions, a verifier or an environment where it is a data set."""
    sources = {name: getattr(args, name) for name in ("task", "data_file", "dataset_name")}
    names = [name for name, value in {**sources, "train_dataset": dataset}.items() if value is not None]
    names = names or (["eval_file"] if args.eval_file is not None else [])
    if not names:
        raise UserError(
            "nothing to train or measure on: give 'task', or 'data_file' or 'dataset_name' with 'reward_funcs' or "
            "'correct'"
        )
    if len(names) > 1:
        raise UserError(f"more than one source of prompts: {', '.join(names)}; give one")
    if names != ["task"] and not functions and not args.correct and environment is None:
        raise UserError(
            f"{names[0]!r} needs 'reward_funcs' or 'correct': functions f(prompts, completions, **columns) -> list of "
            "numbers, or their dotted paths, such as my_rewards.length; or an 'environment'"
        )


def reward_function(entry: object) -> RewardFunction:
    """A reward function, or the one at a dotted path. Raises UserError for anything that cannot be called."""
    function = resolve(entry, {}, kind="reward function") if isinstance(entry, str) else entry
    if not callable(function):
        raise UserError(
            f"reward_funcs: expected functions f(prompts, completions, **columns) -> list of numbers, found {entry!r}"
            + (f", which is {function!r}" if isinstance(entry, str) else "")
        )
    return function


def check_signature(function: RewardFunction, row: Row) -> None:
    """Raise UserError for a function that needs what it is not given. row: one of the data set, for its columns."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    columns = [name for name in row if name != "prompt"]
    what = f"reward function {reward_name(function)!r}"
    if missing := [p.name for p in needed if p.name not in {"prompts", "completions", *ROLLOUT_ARGUMENTS, *columns}]:
        raise UserError(
            f"{what}: needs {missing[0]!r}, which it is not given: the rows have "
            f"{', '.join(columns) or 'no column but prompt'}; rename one by `columns`, or use map_row"
        )
