"""What a training command checks before torch is loaded, which takes seconds: files, tasks, reward functions, trackers,
the folder. Keys and values are checked by the configuration itself."""

import inspect
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.config.models import check_model_folder, check_model_name
from lfpo.config.plugins import resolve
from lfpo.config.sampler import check_length
from lfpo.config.train import LFPOConfig
from lfpo.core.reward_values import ASYNCHRONOUS
from lfpo.core.scoring import ROLLOUT_ARGUMENTS
from lfpo.prompts.dataset import read_rows
from lfpo.prompts.examples import demonstration, preference, read_examples
from lfpo.prompts.tasks import Row, get_task
from lfpo.rewards import RewardFunction, reward_name
from lfpo.runs import trackers
from lfpo.runs.directory import check_folder


def check_run(args: Any, kind: str, *, resume: bool = False) -> None:
    """Raise the UserError that a command would raise later for its input files, names and folder.

    kind: "train", "sft" or "dpo". args: its configuration; a model of None is a fresh one. Under torchrun the folder is
    not checked here: this may be a restart, which resumes without `resume`. Rank 0 checks it when it opens the run.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        check_folder(Path(args.output_dir), args, resume=resume, kind=kind)
    trackers.check_installed(args.report_to)
    if args.model is not None:
        check_model_name(args.model)
        if (folder := user_path(args.model)).is_dir():
            check_model_folder(folder)
    if kind == "train":
        _check_prompts(args)
        return
    for task in args.tasks:
        get_task(task)
    if args.data_file is not None:  # a data set of the hub is loaded with the model
        read_examples(args, preference if kind == "dpo" else demonstration)


def _check_prompts(args: LFPOConfig) -> None:
    """Check the prompts and reward functions of `lfpo train`."""
    check_source(args, args.reward_funcs)
    if args.task is not None:
        length = args.sampler.gen_length or get_task(args.task).gen_length
        for sampler in (args.sampler, *args.eval_samplers.values()):
            check_length(sampler, length, args.model, "sampler")
    if args.data_file is not None:
        for split in ("train", "eval"):
            read_rows(args, split)
    if not args.reward_memory:  # with it, functions are only imported in their own process
        for path in args.reward_funcs:
            reward_function(path)
    environment_class(args.environment)


def check_source(args: LFPOConfig, functions: Sequence[object], train_dataset: object = None) -> None:
    """Raise UserError unless the configuration or a trainer's `train_dataset` gives one source of prompts, and reward
    functions or an environment with a data set."""
    sources = {name: getattr(args, name) for name in ("task", "data_file", "dataset_name")}
    names = [name for name, value in {**sources, "train_dataset": train_dataset}.items() if value is not None]
    if not names:
        raise UserError("nothing to train on: give 'task', or 'data_file' or 'dataset_name' with 'reward_funcs'")
    if len(names) > 1:
        raise UserError(f"more than one source of prompts: {', '.join(names)}; give one")
    if names != ["task"] and not functions and args.environment is None:
        raise UserError(
            f"{names[0]!r} needs 'reward_funcs': functions f(prompts, completions, **columns) -> list of numbers, or "
            "their dotted paths, such as my_rewards.length; or an 'environment'"
        )


def reward_function(entry: object) -> RewardFunction:
    """A reward function, or the one at a dotted path. Raises UserError for anything that cannot be called."""
    path = isinstance(entry, str) and "/" in entry and ".py" not in entry  # of a model: `org/name`, or a folder
    if path or any(c.__name__ == "Module" and c.__module__.startswith("torch.nn") for c in type(entry).__mro__):
        raise UserError(
            f"reward_funcs: {entry if path else type(entry).__name__!r}: reward models are not taken; call it in a "
            "function f(prompts, completions, **columns), or use lfpo.rewards.judge"
        )
    function = resolve(entry, {}, kind="reward function") if isinstance(entry, str) else entry
    if not callable(function):
        raise UserError(
            f"reward_funcs: expected functions f(prompts, completions, **columns) -> list of numbers, found {entry!r}"
            + (f", which is {function!r}" if isinstance(entry, str) else "")
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise UserError(f"reward function {entry!r}: has no signature; call it in a function of your own") from None
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise UserError(f"reward function {entry!r}: {ASYNCHRONOUS}")
    return function


def check_signature(function: RewardFunction, row: Row) -> None:
    """Raise UserError for a function that needs what it is not given. row: one of the data set, for its columns."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    columns = [name for name in row if name != "prompt"]
    what = f"reward function {reward_name(function)!r}"
    for p in needed:
        if p.kind is p.POSITIONAL_ONLY:
            raise UserError(f"{what}: takes {p.name!r} by position, and arguments are given by name; remove the '/'")
    if missing := [p.name for p in needed if p.name not in {"prompts", "completions", *ROLLOUT_ARGUMENTS, *columns}]:
        advice = (
            f"the rows have {', '.join(columns) or 'no column but prompt'}; rename one by `columns`, or use map_row"
        )
        if {"solution_str", "ground_truth"} & set(missing):
            advice = "verl's functions take one completion; call it in a function f(prompts, completions, **columns)"
        elif missing[0] in ("trainer_state", "log_metric", "log_extra"):
            advice = "TRL passes it, lfpo does not; leave it out"
        raise UserError(f"{what}: needs {missing[0]!r}, which it is not given: {advice}")


def check_engine_gives(functions: Sequence[RewardFunction], gives: Collection[str]) -> None:
    """Raise UserError for a reward function that asks for what the engine's rollouts do not have."""
    for function in functions:
        asked = inspect.signature(function).parameters.keys() & {"forwards", "reveal_step"}
        if missing := sorted(asked - set(gives)):
            raise UserError(
                f"reward function {reward_name(function)!r} asks for {missing[0]!r}, which this engine does not give; "
                "take another engine, or leave out the function"
            )


def environment_class(path: str | None) -> Any:
    """The class of environments at a dotted path, or what else makes them. Raises UserError for what cannot, and for a
    class without `reset` or `step`."""
    environment = None if path is None else resolve(path, {}, kind="environment")
    methods = ("reset", "step") if isinstance(environment, type) else ("__call__",)
    if path is not None and not all(hasattr(environment, name) for name in methods):
        raise UserError(
            f"environment {path!r}: expected a class with reset(row, seed) and step(text) -> (reply, reward, done), "
            f"found {environment!r}"
        )
    return environment
