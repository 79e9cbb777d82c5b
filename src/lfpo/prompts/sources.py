"""What a command trains and measures on: prompts, held-out rows, and what scores and judges their completions.

`make_source` resolves the settings (lfpo.config.data) to one PromptSource, for training, evaluation, comparisons and
samples alike: of a task, or of rows of one's own with reward functions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from lfpo.config.data import ProblemConfig
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.core.messages import prefill
from lfpo.core.rng import generator
from lfpo.core.scoring import Rewards, Scorer, copied
from lfpo.prompts.dataset import is_stream, read_rows
from lfpo.prompts.problems import check_signature, check_source, reward_function
from lfpo.prompts.tasks import DataTask, Row, Task, get_task, source_file
from lfpo.rewards import RewardFunction, in_child, reward_names
from lfpo.rewards.measured import measured, measures

T = TypeVar("T")

COLUMN_CHARACTERS = 2_000  # of a column that a record keeps; tests of a program may be long


@dataclass(frozen=True)
class Judged:
    """What held-out completions got. values: of each completion its verdict, or without a verifier its reward; None
    where it cannot be judged. failed: function -> why it failed on these completions."""

    values: list[bool | float | None]
    failed: dict[str, str]


# judge(rows, completions, of_rollouts): completions of b rows; b values of each of lfpo.core.scoring.ROLLOUT_ARGUMENTS.
Judge = Callable[[Sequence[Row], Sequence[str], Json], Judged]


@dataclass(frozen=True)
class PromptSource:
    """Training prompts, held-out rows, and how their completions are scored.

    train_row(index): the row at a position of the endless training stream; the same after a resume.
    eval_rows: held-out rows; may be empty. reward_functions: score training completions. weights, timeout: their
        weights, and the seconds that each may take for a batch (0: no limit).
    place(split, index): where a row of "train" (an index into `rows`) or "eval" is from, for messages.
    verify: judges whether completions are right, for evaluation; None if there is no verifier.
    gen_length: default completion length in tokens.
    rows: the distinct training rows; empty where they are generated. The stream repeats them in epochs.
    stream: whether they are the first rows of a data set without a length, as many as the run needs.
    files: the user's own files that decide what a completion gets.
    sample_record(row, completion): a line for the task's own evaluator, if it has one.
    """

    name: str
    train_row: Callable[[int], Row]
    eval_rows: Sequence[Row]
    place: Callable[[str, int], str]
    reward_functions: Sequence[RewardFunction]
    verify: Judge | None = None
    gen_length: int = 128
    rows: Sequence[Row] = ()
    stream: bool = False
    weights: Sequence[float] = ()
    timeout: float = 0.0
    files: Sequence[Path] = ()
    sample_record: Callable[[Row, str], Any] | None = None

    @property
    def measure(self) -> str:
        """What held-out results are: "accuracy" with a verifier, else "reward", the mean reward."""
        return "reward" if self.verify is None else "accuracy"

    def judge(self, rows: Sequence[Row], texts: Sequence[str], of_rollouts: Json) -> Judged:
        """What b held-out completions get."""
        if self.verify is not None:
            return self.verify(rows, texts, of_rollouts)
        rewards = self.score(rows, texts, of_rollouts)
        return Judged([None if reward != reward else reward for reward in rewards.reward_B.tolist()], rewards.failed)

    def score(self, rows: Sequence[Row], texts: Sequence[str], of_rollouts: Json) -> Rewards:
        """The rewards of b completions of b rows; see lfpo.core.scoring.Scorer."""
        return self.scorer.score(rows, texts, of_rollouts)

    @functools.cached_property
    def scorer(self) -> Scorer:
        named = dict(zip(reward_names(self.reward_functions), self.reward_functions, strict=True))
        measuring = any(map(measures, self.reward_functions))
        metrics = functools.partial(measured, named) if measuring else dict
        return Scorer(named, self.weights, self.timeout, metrics)


def make_source(
    args: ProblemConfig,
    *,
    seed: int,
    n_eval: int | None = None,
    splits: Sequence[str] = ("train", "eval"),
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
    train_dataset: Sequence[Row] | None = None,
    eval_dataset: Sequence[Row] | None = None,
    most: int | None = None,
    environment: object = None,
) -> PromptSource:
    """The prompts, reward functions and verifier that the settings and a trainer's arguments give.

    seed: draws training rows. n_eval: number of held-out rows, at most (None: a task's default, all of a data set).
    splits: those that are read; an evaluation reads no training rows. most: rows that are read of a train_dataset
    without a length. environment: what gives the rewards instead.
    Raises UserError where these do not go together.
    """
    functions = _functions(args, reward_funcs)
    if (functions or args.correct) and environment is not None:
        raise UserError("an environment gives the rewards itself; leave out reward_funcs and correct")
    check_source(args, functions, train_dataset, environment)
    if args.task is not None:
        if eval_dataset is not None:
            raise UserError("eval_dataset goes with train_dataset; a task brings its own test split")
        source = task_source(get_task(args.task), seed=seed, n_eval=n_eval, training="train" in splits)
        if environment is not None:
            source = replace(source, reward_functions=[], verify=None)
        elif functions:
            source = replace(source, reward_functions=functions)
        file = source_file(args.task)
        source = replace(source, files=[] if file is None else [file])
    else:
        correct = None if args.correct is None else _limited(args, args.correct)
        called = [*functions, *([] if correct is None else [correct])]  # with the columns of the rows
        records = {}
        if "train" in splits:
            records["train"] = read_rows(args, "train", train_dataset, most)
            if not records["train"]:
                raise UserError("train_dataset: no rows")
        if "eval" in splits and n_eval != 0:
            records["eval"] = read_rows(args, "eval", eval_dataset, n_eval)[:n_eval]
        rows = [record.values for record in records.get("train", [])]
        source = PromptSource(
            name=str(args.dataset_name or Path(args.eval_file or args.data_file or "dataset").stem),
            # A stream keeps its order, so that a longer run, which reads more of it, begins with the same rows.
            train_row=(lambda i: rows[i % len(rows)]) if is_stream(train_dataset) else in_epochs(rows, seed),
            eval_rows=[record.values for record in records.get("eval", [])],
            place=lambda split, i: records[split][i].where,
            reward_functions=functions or called,  # without others the verifier gives the rewards, too
            verify=None if correct is None else verified_by(correct, args.reward_timeout),
            rows=rows,
            stream=is_stream(train_dataset),
            files=sorted({file for f in called if (file := _file_of(f)) is not None}),
        )
        functions = called
    # Now, on one row: a function that needs a column that there is not would fail after the first rollouts.
    first = [source.train_row(0)] if "train" in splits else source.eval_rows[:1]
    for function in functions if first else ():
        check_signature(function, first[0])
    count = len(source.reward_functions)
    weights = args.reward_weights or [1.0] * count
    if len(weights) != count:
        raise UserError(f"reward_weights: {len(weights)} weights for {count} functions")
    return replace(source, weights=weights, timeout=args.reward_timeout)


def verified_by(function: RewardFunction, timeout: float = 0.0) -> Judge:
    """The verifier that a reward function is: a reward of 1 or more is right, None is not judged."""
    scorer = Scorer({reward_names([function])[0]: function}, [1.0], timeout)

    def judge(rows: Sequence[Row], texts: Sequence[str], of_rollouts: Json) -> Judged:
        found = scorer.score(rows, texts, of_rollouts)
        return Judged([None if r != r else r >= 1 for r in found.reward_B.tolist()], found.failed)

    return judge


def task_judge(task: Task | DataTask) -> Judge:
    """The judge that a task's verifier is. It gets the beginning of an answer that the prompt has, too."""

    def judge(rows: Sequence[Row], texts: Sequence[str], of_rollouts: Json) -> Judged:
        whole = [prefill(row["prompt"]) + text for row, text in zip(rows, texts, strict=True)]
        return Judged([*task.correct_all(copied(rows), whole)], {})

    return judge


def _functions(
    args: ProblemConfig, reward_funcs: RewardFunction | Sequence[RewardFunction] | None
) -> list[RewardFunction]:
    """The reward functions of the arguments, or of the settings."""
    functions: list[Any] = [*args.reward_funcs]
    if reward_funcs is not None:
        functions = [*reward_funcs] if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if args.reward_memory and not functions and not args.correct:
        raise UserError("reward_memory limits the functions of reward_funcs, and none is given; leave it out")
    return [_limited(args, function) for function in functions]


def _limited(args: ProblemConfig, entry: Any) -> RewardFunction:
    """A reward function, which runs in a child process if reward_memory is set."""
    function = reward_function(entry)
    return in_child(entry, memory=args.reward_memory, seconds=args.reward_timeout) if args.reward_memory else function


def _file_of(function: object) -> Path | None:
    """The file that a user's function is from; None for one of lfpo's own or of a notebook."""
    module = getattr(function, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if module.startswith("lfpo.") or file is None else Path(file)


def task_source(task: Task | DataTask, *, seed: int, n_eval: int | None = None, training: bool = True) -> PromptSource:
    """The prompts of a task: training rows drawn with `seed`, and its first test rows for evaluation.

    n_eval: number of test rows (None: the task's default). A data set with fewer gives all of them. training: whether
    the training split is read.
    """
    return PromptSource(
        name=task.name,
        train_row=functools.partial(task.row, "train", seed=seed),
        eval_rows=task.test_rows(n_eval),
        reward_functions=task.reward_functions,
        verify=task_judge(task),
        gen_length=task.gen_length,
        rows=task.train_rows() if training else (),
        place=functools.partial(row_place, task),
        sample_record=getattr(task, "sample_record", None),
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
    """The prompt of a row, and its text and numbers: what is the same in every process."""
    return {name: v for name, v in row.items() if name == "prompt" or isinstance(v, str | int | float | None)}


def kept_columns(row: Row) -> Row:
    """The columns of a row as a record keeps them: all but the prompt that are JSON of at most COLUMN_CHARACTERS."""

    def fits(value: object) -> bool:
        try:
            return len(json.dumps(value, allow_nan=False)) <= COLUMN_CHARACTERS
        except (TypeError, ValueError):
            return False

    return {name: value for name, value in row.items() if name != "prompt" and fits(value)}


def default_length(task: str | None) -> int:
    """Tokens of a completion where no setting says it: the task's own, or PromptSource's for rows of a data set."""
    return PromptSource.gen_length if task is None else get_task(task).gen_length


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
