"""Tasks. To add one, add a file and a line in lfpo.config.tasks, or give a dotted path on the command line."""

import dataclasses
import re
import sys
from pathlib import Path

from lfpo.config.errors import UserError
from lfpo.config.plugins import DOTTED, dotted, resolve
from lfpo.config.tasks import BENCHMARKS, LENGTHS, OTHERS, TASKS
from lfpo.core.scoring import Row
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.reasoning_gym import gym_task
from lfpo.prompts.tasks.task import VALIDATION, Task


def get_task(name: str) -> Task | DataTask:
    """A task by its name or by dotted path (`package.module:TASK`).

    `NAME@validation` is a generated task in validation (see Task). `NAME@PATH` reads a benchmark's rows from local
    files: `gsm8k@FOLDER`, `gsm8k@test.jsonl`, `gsm8k@train=FILE,test=FILE`. `reasoning_gym:NAME` is a task of the
    package reasoning-gym.
    Raises UserError for an unknown name or a missing file.
    """
    base, at, where = name.partition("@")
    known = {**TASKS, **LENGTHS, **OTHERS, **BENCHMARKS}
    task = gym_task(base) if base.startswith("reasoning_gym:") else resolve(base, known, kind="task")
    if not isinstance(task, Task | DataTask):
        raise UserError(f"task {name!r}: expected a Task or DataTask, found {type(task).__name__}")
    if not at:
        return task
    if isinstance(task, Task):
        if name == base + VALIDATION:
            return dataclasses.replace(task, name=name)
        raise UserError(
            f"task {name!r}: {base!r} makes its own problems and reads no files; leave out '@{where}', or write "
            f"'{base}{VALIDATION}' to test on problems of the training split that are not trained on"
        )
    return task.at(where)


def source_file(name: str) -> Path | None:
    """The file of the module that holds a task by dotted path, once it is loaded; None for a task of lfpo's or of
    reasoning-gym, and in a notebook."""
    base, _, _ = name.partition("@")
    if base.startswith("reasoning_gym:") or not re.search(DOTTED, base):
        return None
    file = getattr(sys.modules[dotted(base, {}, kind="task")[0]], "__file__", None)
    return None if file is None else Path(file)


__all__ = ["DataTask", "Row", "Task", "get_task", "source_file"]
