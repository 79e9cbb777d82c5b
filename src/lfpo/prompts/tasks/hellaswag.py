"""HellaSwag (Zellers et al., arXiv 1905.07830; MIT): how a text continues. Tests on the validation split."""

from __future__ import annotations

from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.multiple_choice import choice_row, choice_task
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row


def build(record: Record) -> Row:
    """From `ctx`, `endings` and `label`."""
    endings = record.texts("endings")
    question = f"Which ending continues the text best?\n{record.text('ctx').strip()}"
    return choice_row(question, endings, record.integer("label", 0, len(endings) - 1))


TASK = choice_task(
    "hellaswag",
    build,
    hub=(("train", HubSplit("Rowan/hellaswag", "train")), ("test", HubSplit("Rowan/hellaswag", "validation"))),
)
