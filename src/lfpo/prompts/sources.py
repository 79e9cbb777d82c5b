"""Where training's prompts and held-out problems come from, and what scores their completions."""

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
