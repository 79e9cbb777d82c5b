"""HumanEval (Chen et al., arXiv 2107.03374; MIT): 164 functions to complete, each tested by a `check(candidate)`.

Trains on AceCode-87K, as the LFPO paper does.
"""

from __future__ import annotations

from lfpo.prompts.tasks import acecode
from lfpo.prompts.tasks.code_task import code_row, code_task
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row

HUB = (("train", acecode.TRAIN), ("test", HubSplit("openai/openai_humaneval", "test")))
STEMS = (("train", ("train",)), ("test", ("test", "HumanEval")))


def build(record: Record) -> Row:
    """From `task_id`, `prompt` (the beginning of the program), `test`, `entry_point` and `canonical_solution`."""
    prompt, entry_point = record.text("prompt"), record.text("entry_point")
    return code_row(
        record.text("task_id"),
        f"Complete this function:\n```python\n{prompt.strip()}\n```",
        [f"{record.text('test')}\n\ncheck({entry_point})\n"],
        prompt + record.text("canonical_solution"),
        entry_point=entry_point,
        header=prompt,
    )


TASK = code_task("humaneval", acecode.build_acecode_or(build), HUB, STEMS)
ACECODE = code_task("acecode", acecode.build_acecode_or(build), HUB, STEMS)
