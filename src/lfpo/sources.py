"""Where training's prompts and held-out problems come from, and what scores their completions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .data import check_row, load_jsonl
from .errors import UserError
from .plugins import resolve
from .rewards import RewardFunction, in_child
from .rng import generator
from .tasks import DataTask, Row, Task, get_task
from .train_config import LFPOConfig


@dataclass(frozen=True)
class PromptSource:
    """Training prompts by index, held-out rows, and their scoring.

    train_row(index): the row at a position of the endless training stream, the same after a resume.
    eval_rows: held-out rows; may be empty. correct_all(rows, completions): strict verdicts for
        evaluation, if there is a verifier; None where something cannot be judged on this machine.
    """

    name: str
    train_row: Callable[[int], Row]
    eval_rows: Sequence[Row]
    reward_functions: Sequence[RewardFunction]
    correct_all: Callable[[Sequence[Row], Sequence[str]], Sequence[bool | None]] | None = None
    gen_length: int = 128


def task_source(task: Task | DataTask, *, seed: int, n_eval: int | None = None) -> PromptSource:
    """Prompts of a task: fresh training rows from `seed`, its standard test rows for evaluation.

    n_eval: how many test rows (None: the standard number); a data set that has fewer gives all.
    """
    return PromptSource(
        name=task.name,
        train_row=lambda index: task.row("train", index, seed),
        eval_rows=task.test_rows(n_eval),
        reward_functions=task.reward_functions,
        correct_all=task.correct_all,
        gen_length=task.gen_length,
    )


def list_source(
    rows: Sequence[Row], reward_functions: Sequence[RewardFunction], *, seed: int, eval_rows: Sequence[Row] = ()
) -> PromptSource:
    """Prompts of a data set, in a new keyed order each epoch."""

    @functools.lru_cache(maxsize=1)
    def order(epoch: int) -> list[int]:
        return torch.randperm(len(rows), generator=generator(seed, "epoch", epoch)).tolist()

    def train_row(index: int) -> Row:
        epoch, position = divmod(index, len(rows))
        return rows[order(epoch)[position]]

    return PromptSource("dataset", train_row, eval_rows, reward_functions)


def make_source(
    args: LFPOConfig,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None,
    train_dataset: Sequence[dict[str, Any]] | None,
    eval_dataset: Sequence[dict[str, Any]] | None,
) -> PromptSource:
    """The prompts and rewards that a configuration and the trainer's arguments name together.

    Raises UserError where they name none, or more than one.
    """
    functions = _functions(args, reward_funcs)
    if train_dataset is None and args.data_file is None:
        if args.task is None:
            raise UserError("nothing to train on: give 'task', or 'data_file' with 'reward_funcs'")
        source = task_source(get_task(args.task), seed=args.seed, n_eval=args.eval_size)
        if eval_dataset is not None:
            raise UserError("eval_dataset goes with train_dataset; a task brings its own test split")
        if functions:
            source = PromptSource(**{**source.__dict__, "reward_functions": functions})
        return source
    if args.task is not None or (train_dataset is not None and args.data_file is not None):
        raise UserError("more than one of task, data_file and train_dataset was given; give one")
    if not functions:
        raise UserError(
            "a data set needs reward_funcs: functions f(prompts, completions, **columns) -> list of numbers"
        )
    if train_dataset is None:
        assert args.data_file is not None
        rows = load_jsonl(args.data_file)
    else:
        rows = [dict(row) for row in train_dataset]
        for i, row in enumerate(rows):
            check_row(row, f"train_dataset[{i}]")
        if not rows:
            raise UserError("train_dataset: no rows")
    if eval_dataset is not None:
        eval_rows = [dict(row) for row in eval_dataset]
        for i, row in enumerate(eval_rows):
            check_row(row, f"eval_dataset[{i}]")
    else:
        eval_rows = load_jsonl(args.eval_file) if args.eval_file else []
    return list_source(rows, functions, seed=args.seed, eval_rows=eval_rows[: args.eval_size])


def _functions(
    args: LFPOConfig, reward_funcs: RewardFunction | Sequence[RewardFunction] | None
) -> list[RewardFunction]:
    """Those of the arguments, or else of the configuration; in child processes where their memory is bounded."""
    given: list[RewardFunction | str] = [*args.reward_funcs]
    if reward_funcs is not None:
        given = [reward_funcs] if callable(reward_funcs) else [*reward_funcs]
    if args.reward_memory:
        if not given:
            raise UserError("reward_memory bounds the functions of reward_funcs, and none is given; leave it out")
        return [in_child(f, memory=args.reward_memory, seconds=args.reward_timeout) for f in given]
    return [resolve(f, {}, kind="reward function") if isinstance(f, str) else f for f in given]
