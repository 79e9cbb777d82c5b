"""Checks of a command's model and tasks before torch is loaded, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

from lfpo.base.checks import check_model_name
from lfpo.prompts.tasks import get_task


def check_names(model: str, tasks: Sequence[str]) -> None:
    """Raise UserError for a model folder or a task that does not exist."""
    check_model_name(model)
    for task in tasks:
        get_task(task)
