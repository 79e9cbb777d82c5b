"""HumanEval+ (Liu et al., arXiv 2305.01210; Apache-2.0): HumanEval with about 80 times as many tests."""

from __future__ import annotations

from lfpo.prompts.tasks import acecode, humaneval
from lfpo.prompts.tasks.code_task import code_task
from lfpo.prompts.tasks.hub import HubSplit

TASK = code_task(
    "humaneval_plus",
    acecode.build_acecode_or(humaneval.build),
    (("train", acecode.TRAIN), ("test", HubSplit("evalplus/humanevalplus", "test"))),
)

KNOWN_BROKEN = {"HumanEval/32": "the suite unpacks the root, a number, as a list; no program passes"}
"""Rows whose reference solution fails their tests, also in the hub's version. They count in the accuracy."""
