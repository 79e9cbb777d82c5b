"""AceCode-87K (Zeng et al., arXiv 2502.01718; MIT): the LFPO paper's training set for code, about 16 tests a problem.

The questions name the function; the tests are hidden. It has no test split: the task tests on HumanEval, zero-shot.
Suites without training rows (HumanEval, BigCodeBench) train on it.
"""

from collections.abc import Callable

from lfpo.prompts.tasks.code_task import code_row
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.code import extract_code

TRAIN = HubSplit("TIGER-Lab/AceCode-87K", "train")


def build(record: Record) -> Row:
    """From `id`, `question`, `test_cases` (assertions) and optionally `inferences`.

    An inference is a model's program and the share of the tests that it passes. The best one is used as the solution.
    """
    tests = record.texts("test_cases")
    return code_row(str(record["id"]), record.text("question"), tests, _best_program(record))


def build_acecode_or(build_test: Callable[[Record], Row | None]) -> Callable[[Record], Row | None]:
    """A build function for a task that trains on AceCode and tests on the suite whose records build_test builds."""
    return lambda record: build(record) if "question" in record or "test_cases" in record else build_test(record)


def _best_program(record: Record) -> str:
    """The code of the inference with the highest pass rate, or an empty string without inferences."""
    if "inferences" not in record:
        return ""
    try:
        programs = [(float(i["pass_rate"]), str(i["completion"])) for i in record["inferences"]]
    except (TypeError, KeyError, ValueError):
        raise record.wrong("inferences", "a list of objects with completion and pass_rate") from None
    return extract_code(max(programs, key=lambda found: found[0])[1]) if programs else ""
