"""`DataTask`: a task whose rows come from a data set, in local files or on the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import functools
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lfpo.config.errors import UserError
from lfpo.config.files import user_path
from lfpo.core.attempts import RewardFailed, users_code
from lfpo.core.rng import python_rng
from lfpo.core.scoring import Row, accepted
from lfpo.prompts.files import load_rows
from lfpo.prompts.rows import Record
from lfpo.prompts.tasks.records import HubSplit, find_split, load_hub, split_files
from lfpo.prompts.tasks.verdicts import verdicts
from lfpo.rewards import RewardFunction
from lfpo.rewards.formats import tag_format

SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class DataTask:
    """A benchmark, for training and evaluation.

    build(record) -> row: the prompt (messages) and the columns that the graders need; None to leave the record out.
    accuracy: the strict grader, a reward function with TRL's signature: 1 or 0, or None for a row that this machine
        cannot judge.
    formats: further reward functions for training.
    solution_key(row) -> str: training rows with the key of a test row are left out.
    solution(row) -> str: a correct completion in the format that the prompt asks for.
    hub: (split, place on the hub) pairs. stems: (split, possible file names without suffix) pairs.
    local: (split, path) pairs for splits that are read from files instead. Each task reads its rows once.
    gen_length: completion length in tokens. right_share: as in Task; demonstrations are always correct.
    """

    name: str
    build: Callable[[Record], Row | None]
    accuracy: RewardFunction
    formats: tuple[RewardFunction, ...] = (tag_format,)
    solution_key: Callable[[Row], str]
    solution: Callable[[Row], str]
    hub: tuple[tuple[str, HubSplit], ...] = ()
    gen_length: int = 256
    stems: tuple[tuple[str, tuple[str, ...]], ...] = (("train", ("train",)), ("test", ("test",)))
    local: tuple[tuple[str, str], ...] = ()
    right_share: float = 1.0

    def row(self, split: str, index: int, seed: int = 0) -> Row:
        """Row `index` of a split. Test rows keep the data set's order. Training rows repeat, in a new order each epoch.

        Raises UserError if the split cannot be read, or the test split has no such row.
        """
        rows = split_rows(self, split)
        if split == "train":
            epoch, position = divmod(index, len(rows))
            return rows[_order(self.name, len(rows), seed, epoch)[position]].values
        if index >= len(rows):
            raise UserError(f"task {self.name!r}: the test split has {len(rows)} rows, row {index + 1} was asked for")
        return rows[index].values

    def place(self, split: str, index: int) -> str:
        """Where a row is from: `file:line`, or data set, split and row. index: in `train_rows` or `test_rows`."""
        return split_rows(self, split)[index].where

    def train_rows(self) -> list[Row]:
        """All training rows, in the data set's order."""
        return [row.values for row in split_rows(self, "train")]

    def test_rows(self, n: int | None = None) -> list[Row]:
        """The first n test rows, or all if there are fewer or n is None. 0 does not load the split."""
        return [] if n == 0 else [row.values for row in split_rows(self, "test")[:n]]

    def correct(self, completion: str, row: Row) -> bool:
        """Whether a completion gets the accuracy reward."""
        return self.correct_all([row], [completion])[0] is True

    def correct_all(self, rows: Sequence[Row], completions: Sequence[str]) -> list[bool | None]:
        """Whether each completion gets the accuracy reward; None for a row that this machine cannot judge.

        Such rows do not count in any accuracy; `needs` gives the reason. All are None, with a warning, where the grader
        itself cannot judge (RewardFailed).
        """
        if not rows:
            return []
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        given = {"prompts": [row["prompt"] for row in rows], "completions": list(completions)}
        call = functools.partial(self.accuracy, **given, **accepted(self.accuracy, columns))
        try:
            return verdicts(f"task {self.name!r}: accuracy", call, len(rows))
        except RewardFailed as error:
            warnings.warn(f"{len(rows)} completions are not judged: {error}", stacklevel=2)
            return [None] * len(rows)

    def needs(self, row: Row) -> str:
        """What this machine lacks to judge the row (`library pandas`), or an empty string."""
        return str(row.get("needs", ""))

    @property
    def reward_functions(self) -> list[RewardFunction]:
        """The LFPO paper's sparse rewards: format and accuracy, each 1 or 0."""
        return [*self.formats, self.accuracy]

    def demonstrate(self, row: Row, rng: random.Random, right_share: float) -> str:
        """The reference solution. Raises UserError unless right_share is 1: a data set has no wrong demonstrations."""
        if right_share != 1.0:
            raise UserError(f"task {self.name!r}: has right demonstrations only; set right_share to 1")
        return self.solution(row)

    def at(self, where: str) -> DataTask:
        """The same task over local files: a folder, a file, or `train=PATH,test=PATH`. Other splits stay on the hub.

        Splits of a folder are those that it has a file of; if it has none, reading a split raises the UserError.
        A single file is the training split if its name starts with a stem of that split, else the test split.
        """
        if "=" in where:
            local = list[tuple[str, str]]()
            for part in where.split(","):
                split, _, file = part.partition("=")
                if split not in SPLITS or not file:
                    raise UserError(f"task {self.name!r}: expected train=PATH,test=PATH after '@', found {part!r}")
                local.append((split, file))
        elif (path := user_path(where)).is_dir():
            stems = dict(self.stems)
            present = [split for split in SPLITS if split_files(path, stems[split])]
            local = [(split, where) for split in present or SPLITS]
        else:
            local = [("train" if path.stem.startswith(dict(self.stems)["train"]) else "test", where)]
        return dataclasses.replace(self, local=tuple((split, str(user_path(file).absolute())) for split, file in local))


@functools.lru_cache(maxsize=16)
def split_rows(task: DataTask, split: str) -> Sequence[Record]:
    """All rows of a split and their places, cached. Training rows with the solution_key of a test row are left out."""
    rows = []
    for record in _records(task, split):
        with users_code(f"task {task.name!r}: build, of {record.where},"):
            row = task.build(record)
        if row is not None:
            rows.append(Record(row, record.where))
    built = len(rows)
    local, hub = dict(task.local), dict(task.hub)
    # Local training rows do not load the test split from the hub.
    if split == "train" and ("test" in local or ("train" not in local and "test" in hub)):
        held_out = {task.solution_key(row.values) for row in split_rows(task, "test")}
        rows = [row for row in rows if task.solution_key(row.values) not in held_out]
    if not rows:
        why = f": the solutions of all {built} are in the test split, too" if built else ""
        raise UserError(f"task {task.name!r}: the {split} split has no rows{why}")
    return rows


def _records(task: DataTask, split: str) -> list[Record]:
    """The records of a split, from its local files or the hub."""
    local, hub = dict(task.local), dict(task.hub)
    if split in local:
        path = user_path(local[split])
        files = find_split(path, dict(task.stems)[split]) if path.is_dir() else [path]
        return [record for file in files for record in load_rows(file, typed=False)]
    if split not in hub:
        raise UserError(f"task {task.name!r}: no {split} split on the hub; give a file: {task.name}@{split}=FILE")
    return load_hub(hub[split], f"or use local files: {task.name}@FOLDER, see docs/tasks.md")


@functools.lru_cache(maxsize=4)
def _order(name: str, n: int, seed: int, epoch: int) -> list[int]:
    """The order of the n training rows in an epoch."""
    order = list(range(n))
    python_rng("task", name, "train", seed, epoch).shuffle(order)
    return order
