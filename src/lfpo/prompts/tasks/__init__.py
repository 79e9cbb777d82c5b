"""Tasks. To add one, add a file and a line below, or give a dotted path on the command line."""

import dataclasses

from lfpo.config.errors import UserError
from lfpo.config.plugins import resolve
from lfpo.prompts.tasks.data_task import DataTask
from lfpo.prompts.tasks.reasoning_gym import gym_task
from lfpo.prompts.tasks.task import VALIDATION, Row, Task

# Procedural tasks: their problems are generated. The embedded model is trained on them.
TASKS: dict[str, str] = {
    "sudoku": "lfpo.prompts.tasks.sudoku:TASK",
    "countdown": "lfpo.prompts.tasks.countdown:TASK",
    "words": "lfpo.prompts.tasks.words:TASK",
    "expression": "lfpo.prompts.tasks.expression:TASK",
    "choice": "lfpo.prompts.tasks.choice:TASK",
}

# The same task in several lengths, for comparisons. The recipes successor-pretrain and successor make its base model.
LENGTHS: dict[str, str] = {
    f"successor{length}": f"lfpo.prompts.tasks.successor:LENGTH_{length}" for length in (16, 32, 64, 128)
}

# Data sets: read from files or the Hugging Face hub.
BENCHMARKS: dict[str, str] = {
    "gsm8k": "lfpo.prompts.tasks.math:GSM8K",
    "math": "lfpo.prompts.tasks.math:MATH",
    "math500": "lfpo.prompts.tasks.math:MATH500",
    "d1_countdown": "lfpo.prompts.tasks.d1:COUNTDOWN",
    "d1_sudoku": "lfpo.prompts.tasks.d1:SUDOKU",
    "hellaswag": "lfpo.prompts.tasks.multiple_choice:HELLASWAG",
    "winogrande": "lfpo.prompts.tasks.multiple_choice:WINOGRANDE",
    "piqa": "lfpo.prompts.tasks.multiple_choice:PIQA",
    "gpqa": "lfpo.prompts.tasks.multiple_choice:GPQA",
    "acecode": "lfpo.prompts.tasks.code_task:ACECODE",
    "humaneval": "lfpo.prompts.tasks.code_task:HUMANEVAL",
    "humaneval_plus": "lfpo.prompts.tasks.code_task:HUMANEVAL_PLUS",
    "mbpp": "lfpo.prompts.tasks.code_task:MBPP",
    "mbpp_plus": "lfpo.prompts.tasks.code_task:MBPP_PLUS",
    "bigcodebench": "lfpo.prompts.tasks.bigcodebench:TASK",
    "bigcodebench_hard": "lfpo.prompts.tasks.bigcodebench:HARD_TASK",
    "bigcodebench_instruct": "lfpo.prompts.tasks.bigcodebench:INSTRUCT",
    "bigcodebench_hard_instruct": "lfpo.prompts.tasks.bigcodebench:HARD_INSTRUCT",
}


def get_task(name: str) -> Task | DataTask:
    """A task by its name or by dotted path (`package.module:TASK`).

    `NAME@validation` is a generated task in validation (see Task). `NAME@PATH` reads a benchmark's rows from local
    files: `gsm8k@FOLDER`, `gsm8k@test.jsonl`, `gsm8k@train=FILE,test=FILE`. `reasoning_gym:NAME` is a task of the
    package reasoning-gym.
    Raises UserError for an unknown name or a missing file.
    """
    base, at, where = name.partition("@")
    known = {**TASKS, **LENGTHS, **BENCHMARKS}
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


__all__ = ["BENCHMARKS", "LENGTHS", "TASKS", "VALIDATION", "DataTask", "Row", "Task", "get_task"]
