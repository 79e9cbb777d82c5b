"""BigCodeBench (Zhuo et al., arXiv 2406.15877; Apache-2.0): 1,140 tasks that use 139 libraries, tested by unittest.

Of its two prompts this is "complete", a function to go on from: the LFPO paper does not say which it means, and its
base row is the one that DiffuCoder's authors give for "BigCodeBench (C)". `bigcodebench_instruct` asks in words.

Its tests patch modules and look into data frames and figures, so they share a process with the program. Rows that need
a library that is not installed here are reported as such, and are part of no accuracy.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import sys

from lfpo.prompts.tasks import acecode
from lfpo.prompts.tasks.code_task import CodeTask, code_row, code_task
from lfpo.prompts.tasks.hub import HubSplit
from lfpo.prompts.tasks.records import Record
from lfpo.prompts.tasks.task import Row
from lfpo.rewards.code import parses
from lfpo.rewards.sandbox import installed_libraries

VERSION = "v0.1.4"


def build(record: Record, prompt: str) -> Row:
    """From `task_id`, `complete_prompt`, `instruct_prompt`, `code_prompt`, `canonical_solution`, `test`, `entry_point`.

    prompt: `complete_prompt` or `instruct_prompt`. The program begins with the imports and an empty function of that
    name, as the benchmark's own scorer has it, so that an answer may leave out the imports that it was shown.
    """
    start, solution, test = (record.text(field) for field in ("code_prompt", "canonical_solution", "test"))
    text = record.text(prompt).strip()
    try:
        missing = missing_libraries(f"{start.rstrip()}\n{solution}", test)
    except SyntaxError as error:
        field = "test" if parses(f"{start.rstrip()}\n{solution}") else "canonical_solution"
        raise record.wrong(field, f"Python ({error.msg}, line {error.lineno})") from error
    return code_row(
        record.text("task_id"),
        f"Complete this function:\n```python\n{text}\n```" if prompt == "complete_prompt" else text,
        [test],
        f"{start.rstrip()}\n{solution}",
        entry_point=record.text("entry_point"),
        header=f"{start.rstrip()}\n    pass\n",
        together=True,
        needs=f"library {', '.join(missing)}" if missing else "",
    )


def missing_libraries(*sources: str) -> list[str]:
    """Top-level names of the modules that the sources import and this environment does not have."""
    trees = [ast.parse(source) for source in sources]
    names: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(name for name in names if not _is_installed(name))


@functools.cache
def _is_installed(name: str) -> bool:
    if name in sys.stdlib_module_names:
        return True
    return importlib.machinery.PathFinder.find_spec(name, installed_libraries()) is not None


def _task(name: str, data_set: str, prompt: str) -> CodeTask:
    hub = (("train", acecode.TRAIN), ("test", HubSplit(data_set, VERSION)))
    return code_task(name, acecode.or_acecode(functools.partial(build, prompt=prompt)), hub)


FULL, HARD = "bigcode/bigcodebench", "bigcode/bigcodebench-hard"
TASK = _task("bigcodebench", FULL, "complete_prompt")
INSTRUCT = _task("bigcodebench_instruct", FULL, "instruct_prompt")
HARD_TASK = _task("bigcodebench_hard", HARD, "complete_prompt")
HARD_INSTRUCT = _task("bigcodebench_hard_instruct", HARD, "instruct_prompt")

KNOWN_BROKEN = {
    "BigCodeBench/21": "reads /proc, which a confined process does not see",
    "BigCodeBench/35": "uses DataFrame.applymap, which pandas 3 has no more",
    "BigCodeBench/36": "uses DataFrame.applymap, which pandas 3 has no more",
    "BigCodeBench/39": "calls nonzero on an array without dimensions, which numpy 2 refuses",
    "BigCodeBench/46": "expects columns of a type that pandas 3 does not give them",
    "BigCodeBench/50": "expects times in nanoseconds, where pandas 3 keeps microseconds",
    "BigCodeBench/91": "expects 0 of a regression over one point, where newer libraries give NaN",
    "BigCodeBench/101": "downloads a data set",
    "BigCodeBench/108": "writes text into a column of integers, which pandas 3 refuses",
    "BigCodeBench/111": "expects None, where pandas 3 gives NaN",
    "BigCodeBench/112": "expects an order of columns that pandas 3 does not keep",
    "BigCodeBench/115": "indexes a mode, which newer SciPy gives as a number",
    "BigCodeBench/147": "opens a socket, which the sandbox refuses",
    "BigCodeBench/157": "expects an array of a shape that newer libraries do not give",
    "BigCodeBench/176": "asks the internet for the names of 8.8.8.8 and 8.8.4.4",
    "BigCodeBench/177": "needs a list of words that NLTK downloads",
}
"""Rows whose own solution fails here: the sandbox or a library's version, not the program. They count all the same."""
