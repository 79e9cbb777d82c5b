"""A task: rows with a prompt, a strict verifier used for both reward and evaluation, and demonstrations to imitate."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lfpo.base.rng import key, python_rng
from lfpo.rewards import RewardFunction

Row = dict[str, Any]

TEST_SHARE = 0.15  # of solutions, for the procedural tasks


@dataclass(frozen=True)
class Task:
    """One task, shared by training and evaluation.

    sample(rng) -> row: one problem; the row holds `prompt` and whatever columns the verifier needs.
    solution_key(row) -> str: what must not be shared by train and test.
    correct(completion, row) -> bool: the verifier.
    demonstrate(row, rng, right_share) -> str: a completion to imitate, right with that probability, otherwise with a
        coherent mistake. right_share: its share in the flawed corpus, below one half.
    gen_length: completion length in tokens that fits every demonstration. n_test: size of the standard test set.
    """

    name: str
    sample: Callable[[random.Random], Row]
    solution_key: Callable[[Row], str]
    correct: Callable[[str, Row], bool]
    demonstrate: Callable[[Row, random.Random, float], str]
    right_share: float
    gen_length: int
    n_test: int = 200

    def row(self, split: str, index: int, seed: int = 0) -> Row:
        """Row `index` of a split, "train" or "test": the same whatever else was drawn before it.

        Splits are disjoint by solution: a hash of the solution decides, and problems are redrawn until one fits.
        """
        rng = python_rng("task", self.name, split, seed, index)
        while True:
            row = self.sample(rng)
            if in_test_split(self.name, self.solution_key(row)) == (split == "test"):
                return row

    def test_rows(self, n: int | None = None) -> list[Row]:
        """The first n rows of the test split; None means n_test."""
        return [self.row("test", i) for i in range(self.n_test if n is None else n)]

    def correct_all(self, rows: Sequence[Row], completions: Sequence[str]) -> list[bool | None]:
        """Whether each completion of a row is right. None, as a DataTask may give it, does not occur."""
        return [self.correct(completion, row) for completion, row in zip(completions, rows, strict=True)]

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """What training is scored by when no other functions are given."""

        def accuracy(prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
            columns.pop("completion_ids", None)
            return self.reward(prompts, completions, **columns)

        return [accuracy]

    def reward(self, prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
        """The sparse accuracy reward, 1 or 0, with TRL's signature."""
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [float(self.correct(c, row)) for c, row in zip(completions, rows, strict=True)]


def in_test_split(task: str, solution: str) -> bool:
    """Whether a solution belongs to the test split: a fixed hash, independent of any seed."""
    return key("split", task, solution) % 1000 < TEST_SHARE * 1000
