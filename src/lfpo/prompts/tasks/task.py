"""`Task`: generated problems with a strict verifier, for reward and evaluation, and demonstrations for SFT."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lfpo.config.errors import UserError
from lfpo.core.rng import key, python_rng
from lfpo.core.scoring import ROLLOUT_ARGUMENTS, Row
from lfpo.prompts.tasks.verdicts import verdict
from lfpo.rewards import RewardFunction

TEST_SHARE = 0.15  # share of the solutions that are reserved for the test split
# Share of the others that a task in validation does not train on. Results of comparisons are not keyed by it: with
# another share, the suffix must be another one, too.
VALIDATION_SHARE = 0.15
VALIDATION = "@validation"  # after the name of a task in validation, to choose settings with
MAX_DRAWS = 100_000  # problems drawn for one row until its solution belongs to the split


@dataclass(frozen=True)
class Task:
    """A task whose problems are generated, for training and evaluation.

    sample(rng) -> row: one problem: `prompt`, and the columns that the verifier needs.
    solution_key(row) -> str: rows with the same key belong to the same split.
    correct(completion, row) -> bool: the verifier.
    demonstrate(row, rng, right_share) -> str: a completion for SFT; correct with probability right_share, else with a
        plausible mistake. right_share: its default, below 1/2.
    gen_length: completion length in tokens; fits every demonstration. n_test: size of the standard test set.
    """

    name: str
    sample: Callable[[random.Random], Row]
    solution_key: Callable[[Row], str]
    correct: Callable[[str, Row], bool]
    demonstrate: Callable[[Row, random.Random, float], str]
    right_share: float
    gen_length: int
    n_test: int = 200

    def _split(self, solution: str) -> str:
        """The split of a solution: "train" or "test". A task in validation splits the training split once more: "test"
        is a part of it, and the test split of the task itself is "", which is neither."""
        drawn_as, validating = self.name.removesuffix(VALIDATION), self.name.endswith(VALIDATION)
        if in_test_split(drawn_as, solution):
            return "" if validating else "test"
        held_out = key("validation", drawn_as, solution) % 1000 < VALIDATION_SHARE * 1000
        return "test" if validating and held_out else "train"

    def row(self, split: str, index: int, seed: int = 0) -> Row:
        """Row `index` of a split, "train" or "test". It depends on the arguments only.

        A hash of the solution assigns a problem to a split; problems are drawn until one belongs to this split. Raises
        UserError if none of many does, as with a task of a few solutions.
        """
        rng = python_rng("task", self.name.removesuffix(VALIDATION), split, seed, index)
        for _ in range(MAX_DRAWS):
            row = self.sample(rng)
            if self._split(self.solution_key(row)) == split:
                return row
        raise UserError(
            f"task {self.name!r}: none of {MAX_DRAWS} problems belongs to the {split} split; a hash of the solution "
            "decides, so the task needs more different solutions"
        )

    def train_rows(self) -> list[Row]:
        """Empty: training rows are generated without end."""
        return []

    def test_rows(self, n: int | None = None) -> list[Row]:
        """The first n rows of the test split; None means n_test."""
        return [self.row("test", i) for i in range(self.n_test if n is None else n)]

    def correct_all(self, rows: Sequence[Row], completions: Sequence[str]) -> list[bool | None]:
        """Whether each completion is correct. Never None, unlike in DataTask."""
        return [verdict(self.name, self.correct, c, row) for c, row in zip(completions, rows, strict=True)]

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """What training uses by default: accuracy, 1 or 0, with TRL's signature."""

        def accuracy(prompts: list[str], completions: list[str], **columns: list[object]) -> list[float]:
            columns = {name: values for name, values in columns.items() if name not in ROLLOUT_ARGUMENTS}
            columns = {"prompt": list(prompts), **columns}  # rows as an evaluation has them
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            return [float(self.correct(c, row)) for c, row in zip(completions, rows, strict=True)]

        return [accuracy]


def in_test_split(task: str, solution: str) -> bool:
    """Whether a solution belongs to the test split, by a fixed hash that does not depend on the seed."""
    return key("split", task, solution) % 1000 < TEST_SHARE * 1000
