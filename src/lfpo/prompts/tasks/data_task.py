"""A task whose rows come from a data set: local files or the hub. Beside `Task`, whose rows are made up on the spot."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lfpo.base.errors import UserError
from lfpo.base.rng import python_rng
from lfpo.prompts.tasks.files import find_split, read_records
from lfpo.prompts.tasks.hub import HubSplit, load_hub
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards import RewardFunction

SPLITS = ("train", "test")


@dataclass(frozen=True)
class DataTask:
    """One benchmark, shared by training and evaluation.

    build(record) -> row: the prompt (messages) and the columns that the graders need, or None for a record that is no
        part of the task.
    accuracy: the strict grader, a TRL-style reward function of 1 or 0, or None where nothing can be said of the row.
    formats: further reward parts.
    solution_key(row) -> str: what train and test must not share; training rows whose
        key stands in the test split are left out.
    solution(row) -> str: a right completion, in the format that the prompt asks for.
    hub: where each split is on the hub. stems: what the file of each split may be called.
    local: (split, path) pairs of what is read from files instead.
    gen_length: completion length in tokens.
    """

    name: str
    build: Callable[[Record], Row | None]
    accuracy: RewardFunction
    formats: tuple[RewardFunction, ...]
    solution_key: Callable[[Row], str]
    solution: Callable[[Row], str]
    hub: tuple[tuple[str, HubSplit], ...]
    gen_length: int
    stems: tuple[tuple[str, tuple[str, ...]], ...] = (("train", ("train",)), ("test", ("test",)))
    local: tuple[tuple[str, str], ...] = ()
    right_share: float = 1.0

    @property
    def n_test(self) -> int:
        """Size of the test split, which is loaded to know it."""
        return len(split_rows(self, "test"))

    def row(self, split: str, index: int, seed: int = 0) -> Row:
        """Row `index` of a split: test rows in the data set's order; train without end, in a new order each epoch."""
        rows = split_rows(self, split)
        if split == "train":
            epoch, position = divmod(index, len(rows))
            return rows[_order(self.name, len(rows), seed, epoch)[position]]
        if index >= len(rows):
            raise UserError(f"task {self.name!r}: the test split has {len(rows)} rows, row {index + 1} was asked for")
        return rows[index]

    def test_rows(self, n: int | None = None) -> list[Row]:
        """The first n test rows, or as many as there are; None means all."""
        return list(split_rows(self, "test")[:n])

    def correct(self, completion: str, row: Row) -> bool:
        """Whether a completion earns the accuracy reward."""
        return self.correct_all([row], [completion])[0] is True

    def correct_all(self, rows: Sequence[Row], completions: Sequence[str]) -> list[bool | None]:
        """Whether each completion of a row earns the accuracy reward; None where that cannot be judged here.

        Rows that cannot be judged belong to no accuracy; `needs` says why.
        """
        if not rows:
            return []
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        values = self.reward([row["prompt"] for row in rows], list(completions), **columns)
        return [None if value is None else value == 1.0 for value in values]

    def needs(self, row: Row) -> str:
        """What is missing on this machine to judge the row (`library pandas`), or nothing."""
        return str(row.get("needs", ""))

    def reward(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> Sequence[float | None]:
        """The accuracy reward, with TRL's signature."""
        return self.accuracy(prompts=prompts, completions=completions, **columns)

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """The paper's sparse rewards: format and accuracy, each 1 or 0."""
        return [*self.formats, self.accuracy]

    def demonstrate(self, row: Row, rng: random.Random, right_share: float) -> str:
        """The reference solution. Wrong demonstrations, which the procedural tasks have, there are none."""
        if right_share != 1.0:
            raise UserError(f"task {self.name!r}: has right demonstrations only; set right_share to 1")
        return self.solution(row)

    def at(self, where: str) -> DataTask:
        """The task over local files: a folder, a file, or `train=PATH,test=PATH`; a split not named stays on the hub.

        A file holds the split that its name begins with, `test` unless that is clearly `train`.
        """
        if "=" in where:
            pairs = tuple(_pair(part, self.name) for part in where.split(","))
            return dataclasses.replace(self, local=pairs)
        path = Path(where).expanduser()
        if path.is_dir():
            return dataclasses.replace(self, local=tuple((split, str(path)) for split in SPLITS))
        if not path.is_file():
            raise UserError(f"task {self.name!r}: {path}: no such file or folder")
        is_train = path.stem.startswith(dict(self.stems)["train"])
        return dataclasses.replace(self, local=(("train" if is_train else "test", str(path)),))


def _pair(text: str, name: str) -> tuple[str, str]:
    split, _, path = text.partition("=")
    if split not in SPLITS or not path:
        raise UserError(f"task {name!r}: expected train=PATH,test=PATH after '@', found {text!r}")
    return split, path


@functools.lru_cache(maxsize=16)
def split_rows(task: DataTask, split: str) -> Sequence[Row]:
    """All rows of a split, read once. Training rows that share their key with a test row are left out."""
    rows = [row for record in _records(task, split) if (row := task.build(record)) is not None]
    if split == "train" and _test_is_at_hand(task):
        held_out = {task.solution_key(row) for row in split_rows(task, "test")}
        rows = [row for row in rows if task.solution_key(row) not in held_out]
    if not rows:
        raise UserError(f"task {task.name!r}: the {split} split has no rows")
    return rows


def _test_is_at_hand(task: DataTask) -> bool:
    """Whether the test split is where the training split is (no hub is asked for the sake of local training rows)."""
    local, hub = dict(task.local), dict(task.hub)
    return "test" in local or ("train" not in local and "test" in hub)


def _records(task: DataTask, split: str) -> list[Record]:
    local, hub = dict(task.local), dict(task.hub)
    if split in local:
        path = Path(local[split]).expanduser()
        files = find_split(path, dict(task.stems)[split]) if path.is_dir() else [path]
        return [record for file in files for record in read_records(file)]
    if split not in hub:
        raise UserError(f"task {task.name!r}: no {split} split on the hub; give a file: {task.name}@{split}=FILE")
    return load_hub(hub[split], task.name)


@functools.lru_cache(maxsize=4)
def _order(name: str, n: int, seed: int, epoch: int) -> list[int]:
    order = list(range(n))
    python_rng("task", name, "train", seed, epoch).shuffle(order)
    return order
