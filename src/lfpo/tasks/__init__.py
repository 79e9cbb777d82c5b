"""Tasks: one file each. A new one is a new file and a line in TASKS, or a dotted path from anywhere."""

from __future__ import annotations

from ..plugins import resolve
from .task import Row, Task

TASKS: dict[str, str] = {
    "sudoku": "lfpo.tasks.sudoku:TASK",
    "countdown": "lfpo.tasks.countdown:TASK",
    "words": "lfpo.tasks.words:TASK",
    "expression": "lfpo.tasks.expression:TASK",
    "choice": "lfpo.tasks.choice:TASK",
}


def get_task(name: str) -> Task:
    """A task by its name in TASKS or by dotted path (`package.module:TASK`)."""
    return resolve(name, TASKS, kind="task", expected=Task)


__all__ = ["TASKS", "Row", "Task", "get_task"]
