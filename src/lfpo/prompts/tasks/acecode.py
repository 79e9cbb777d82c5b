"""AceCode-87K (Zeng et al., arXiv 2502.01718; MIT): what the LFPO paper trains on for code, some 16 tests a problem.

Its questions say what the function is called, and the tests stay hidden. It has no test split: the task is tested on
HumanEval, zero-shot. The suites that have no training rows of their own (HumanEval, BigCodeBench) train on it.
"""

from __future__ import annotations

from collections.abc import Callable

from lfpo.prompts.tasks.code_task import code_row
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.code import extract_code

TRAIN = HubSplit("TIGER-Lab/AceCode-87K", "train")


def build(record: Record) -> Row:
    """From `id`, `question`, `test_cases` (assertions) and, where they are there, `inferences`.

    An inference is a model's program with the share of the tests that it passes; the best stands for a solution.
    """
    tests = record.texts("test_cases")
    return code_row(str(record["id"]), record.text("question"), tests, _best_program(record))


def or_acecode(build_test: Callable[[Record], Row | None]) -> Callable[[Record], Row | None]:
    """Builds AceCode's records, which train, and with the other function those of the suite that is tested on."""
    return lambda record: build(record) if "question" in record or "test_cases" in record else build_test(record)


def _best_program(record: Record) -> str:
    if "inferences" not in record:
        return ""
    try:
        programs = [(float(i["pass_rate"]), str(i["completion"])) for i in record["inferences"]]
    except (TypeError, KeyError, ValueError):
        raise record.wrong("inferences", "a list of objects with completion and pass_rate") from None
    return extract_code(max(programs, key=lambda found: found[0])[1]) if programs else ""
