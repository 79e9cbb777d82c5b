"""HumanEval (Chen et al., arXiv 2107.03374; MIT): 164 functions to complete, each tested by a `check(candidate)`.

HumanEval+ (Liu et al., arXiv 2305.01210; Apache-2.0) has about 80 times as many tests. Both train on AceCode-87K, as
the LFPO paper does.
"""

import dataclasses

from lfpo.prompts.tasks import acecode
from lfpo.prompts.tasks.code_task import CodeTask, code_row
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row


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


_BUILD = acecode.build_acecode_or(build)
_HUB = (("train", acecode.TRAIN), ("test", HubSplit("openai/openai_humaneval", "test")))
_STEMS = (("train", ("train",)), ("test", ("test", "HumanEval")))
TASK = CodeTask(name="humaneval", build=_BUILD, hub=_HUB, stems=_STEMS)
ACECODE = dataclasses.replace(TASK, name="acecode")
PLUS = CodeTask(
    name="humaneval_plus", build=_BUILD, hub=(_HUB[0], ("test", HubSplit("evalplus/humanevalplus", "test")))
)

KNOWN_BROKEN = {"HumanEval/32": "the suite unpacks the root, a number, as a list; no program passes"}
"""Rows of HumanEval+ whose reference solution fails, also in the hub's version. They count in the accuracy."""
