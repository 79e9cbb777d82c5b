"""MBPP+ (Liu et al., arXiv 2305.01210; Apache-2.0): 378 corrected problems of MBPP with about 35 times as many tests.

Trains on MBPP's training rows, except those that are also in its own test split.
"""

from __future__ import annotations

from lfpo.prompts.tasks.code_task import code_task
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.mbpp import TRAIN, problem_row
from lfpo.prompts.tasks.mbpp import build as build_train
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row


def build(record: Record) -> Row:
    """From `task_id`, `prompt`, `code`, `test_list` (the prompt shows its first) and `test` (the graded suite)."""
    if "test" not in record and "text" in record:
        return build_train(record)
    return problem_row(record, [record.text("test")], [], record.texts("test_list")[0])


HUB = (("train", TRAIN), ("test", HubSplit("evalplus/mbppplus", "test")))
TASK = code_task("mbpp_plus", build, HUB)

KNOWN_BROKEN = {"Mbpp/255": "returns millions of tuples, which need more memory than the limit allows"}
"""Rows whose reference solution fails here. They count in the accuracy."""
