"""Prompt sources: training prompts, held-out rows and the functions that score their completions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lfpo.base.rng import generator
from lfpo.prompts.tasks import DataTask, Row, Task
from lfpo.rewards import RewardFunction


@dataclass(frozen=True)
class PromptSource:
    """Training prompts, held-out rows, and how their completions are scored.

    train_row(index): the row at a position of the endless training stream; the same after a resume.
    eval_rows: held-out rows; may be empty. reward_functions: score training completions.
    correct_all(rows, completions): whether each completion is right, for evaluation; None for a row that this machine
        cannot judge. The field is None if there is no verifier.
    gen_length: default completion length in tokens.
    """

    name: str
    train_row: Callable[[int], Row]
    eval_rows: Sequence[Row]
    reward_functions: Sequence[RewardFunction]
    correct_all: Callable[[Sequence[Row], Sequence[str]], Sequence[bool | None]] | None = None
    gen_length: int = 128


def task_source(task: Task | DataTask, *, seed: int, n_eval: int | None = None) -> PromptSource:
    """The prompts of a task: training rows drawn with `seed`, and its first test rows for evaluation.

    n_eval: number of test rows (None: the task's default). A data set with fewer gives all of them.
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
    """The prompts of a data set, in a new order each epoch that depends on the seed only."""

    @functools.lru_cache(maxsize=1)
    def order(epoch: int) -> list[int]:
        return torch.randperm(len(rows), generator=generator(seed, "epoch", epoch)).tolist()

    def train_row(index: int) -> Row:
        epoch, position = divmod(index, len(rows))
        return rows[order(epoch)[position]]

    return PromptSource("dataset", train_row, eval_rows, reward_functions)
