"""PIQA (Bisk et al., arXiv 1911.11641; AFL-3.0): which way to do something works. Tests on the validation split."""

from __future__ import annotations

from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.multiple_choice import choice_row, choice_task
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row


def build(record: Record) -> Row:
    """From `goal`, `sol1`, `sol2` and `label` (0 or 1)."""
    question = f"Which way reaches the goal?\n{record.text('goal').strip()}"
    return choice_row(question, [record.text("sol1"), record.text("sol2")], record.integer("label", 0, 1))


def _hub(split: str) -> HubSplit:
    return HubSplit("ybisk/piqa", split, revision="refs/convert/parquet")  # its main branch is a script


TASK = choice_task("piqa", build, hub=(("train", _hub("train")), ("test", _hub("validation"))))
