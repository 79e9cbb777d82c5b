"""WinoGrande (Sakaguchi et al., arXiv 1907.10641; CC-BY): what a blank stands for. Tests on validation."""

from __future__ import annotations

from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.multiple_choice import choice_row, choice_task
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row


def build(record: Record) -> Row:
    """From `sentence` with a blank `_`, `option1`, `option2` and `answer` (1 or 2)."""
    sentence = record.text("sentence")
    if "_" not in sentence:
        raise record.wrong("sentence", "a sentence with a blank '_'")
    options = [record.text("option1"), record.text("option2")]
    question = f"What does the blank _ stand for?\n{sentence}"
    return choice_row(question, options, record.integer("answer", 1, 2) - 1)


def _hub(split: str) -> HubSplit:
    return HubSplit("allenai/winogrande", split, ("winogrande_xl",))


TASK = choice_task("winogrande", build, hub=(("train", _hub("train")), ("test", _hub("validation"))))
