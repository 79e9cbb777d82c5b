"""Prompt sources: training prompts, held-out rows and the functions that score their completions."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from lfpo.config.json import Json
from lfpo.core.rng import generator
from lfpo.core.scoring import Rewards, Scorer
from lfpo.prompts.tasks import DataTask, Row, Task
from lfpo.rewards import RewardFunction, reward_names
from lfpo.rewards.measured import measured, measures

T = TypeVar("T")

MOST_BITS = 14_000  # of an integer that Python writes in decimals: it has at most 4300 digits


@dataclass(frozen=True)
class PromptSource:
    """Training prompts, held-out rows, and how their completions are scored.

    train_row(index): the row at a position of the endless training stream; the same after a resume.
    eval_rows: held-out rows; may be empty. reward_functions: score training completions. weights, timeout: their
        weights, and the seconds that each may take for a batch (0: no limit).
    place(split, index): where a row of "train" (an index into `rows`) or "eval" is from, for messages.
    correct_all(rows, completions): whether each completion is right, for evaluation; None for a row that this machine
        cannot judge. The field is None if there is no verifier.
    gen_length: default completion length in tokens.
    rows: the distinct training rows; empty where they are generated. The stream repeats them in epochs.
    stream: whether they are the first rows of a data set without a length, as many as the run needs.
    """

    name: str
    train_row: Callable[[int], Row]
    eval_rows: Sequence[Row]
    place: Callable[[str, int], str]
    reward_functions: Sequence[RewardFunction]
    correct_all: Callable[[Sequence[Row], Sequence[str]], Sequence[bool | None]] | None = None
    gen_length: int = 128
    rows: Sequence[Row] = ()
    stream: bool = False
    weights: Sequence[float] = ()
    timeout: float = 0.0

    def score(self, rows: Sequence[Row], texts: Sequence[str], of_rollouts: Json) -> Rewards:
        """The rewards of b completions of b rows; see lfpo.core.scoring.Scorer."""
        return self.scorer.score(rows, texts, of_rollouts)

    @functools.cached_property
    def scorer(self) -> Scorer:
        named = dict(zip(reward_names(self.reward_functions), self.reward_functions, strict=True))
        measuring = any(map(measures, self.reward_functions))
        metrics = functools.partial(measured, named) if measuring else dict
        return Scorer(named, self.weights, self.timeout, metrics)


def task_source(task: Task | DataTask, *, seed: int, n_eval: int | None = None) -> PromptSource:
    """The prompts of a task: training rows drawn with `seed`, and its first test rows for evaluation.

    n_eval: number of test rows (None: the task's default). A data set with fewer gives all of them.
    """
    return PromptSource(
        name=task.name,
        train_row=functools.partial(task.row, "train", seed=seed),
        eval_rows=task.test_rows(n_eval),
        reward_functions=task.reward_functions,
        correct_all=task.correct_all,
        gen_length=task.gen_length,
        rows=task.train_rows(),
        place=functools.partial(row_place, task),
    )


def row_place(task: Task | DataTask, split: str, index: int) -> str:
    """Where a task's row of "train" or "eval" is from, for messages: its record, or its number if it is generated."""
    if isinstance(task, DataTask):
        return task.place("train" if split == "train" else "test", index)
    return f"task {task.name!r}: {split} row {index + 1}"


def fingerprint(example: Callable[[int], object], rows: int) -> str:
    """The number of an epoch's examples and a hash of them, to tell whether a resume has the same; "" without any."""
    digest = hashlib.sha256()
    for number in range(rows):
        digest.update(repr(example(number)).encode())
    return f"{rows} rows, {digest.hexdigest()[:16]}" if rows else ""


def fingerprints(source: PromptSource, first: int) -> dict[str, str]:
    """The `fingerprint` of the rows "training", of generated ones of the first so many, and of those "held-out"."""
    training = fingerprint(lambda i: plain_values(source.train_row(i)), len(source.rows) or first)
    return {
        "training": training,
        "held-out": fingerprint(lambda i: plain_values(source.eval_rows[i]), len(source.eval_rows)),
    }


def plain_values(row: Row) -> Row:
    """The prompt of a row, and its text and numbers: what is the same in every process. An integer that Python does
    not write in decimals is hexadecimal text."""
    values = {name: v for name, v in row.items() if name == "prompt" or isinstance(v, str | int | float | None)}
    long = {name: hex(v) for name, v in values.items() if isinstance(v, int) and v.bit_length() > MOST_BITS}
    return values | long


def in_epochs(examples: Sequence[T], seed: int) -> Callable[[int], T]:
    """A function that returns the example of a number: all of them once an epoch, each epoch in an order of its own,
    the same before and after a resume."""

    @functools.lru_cache(maxsize=1)
    def order(epoch: int) -> list[int]:
        numbers: list[int] = torch.randperm(len(examples), generator=generator(seed, "epoch", epoch)).tolist()
        return numbers

    def example(number: int) -> T:
        epoch, position = divmod(number, len(examples))
        return examples[order(epoch)[position]]

    return example
