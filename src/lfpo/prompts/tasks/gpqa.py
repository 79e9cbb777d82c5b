"""GPQA (Rein et al., arXiv 2311.12022): graduate-level science. Trains on main minus diamond, tests on diamond.

The data set is gated, and its authors ask not to publish its rows: keep them out of public reports and repositories.
"""

from __future__ import annotations

from lfpo.base.rng import python_rng
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.multiple_choice import choice_row, choice_task
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row

FIELDS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def build(record: Record) -> Row:
    """From `Question`, `Correct Answer` and `Incorrect Answer 1` to `3`; the order depends only on the question."""
    question = record.text("Question").strip()
    order = python_rng("gpqa", question).sample(range(len(FIELDS)), len(FIELDS))
    options = [record.text(FIELDS[i]).strip() for i in order]
    return choice_row(question, options, order.index(0))


def _hub(config: str) -> HubSplit:
    return HubSplit("Idavidrein/gpqa", "train", (config,))  # the only split of every configuration is named train


TASK = choice_task(
    "gpqa",
    build,
    hub=(("train", _hub("gpqa_main")), ("test", _hub("gpqa_diamond"))),
    stems=(("train", ("train", "gpqa_main")), ("test", ("test", "gpqa_diamond"))),
)
