"""BigCodeBench (Zhuo et al., arXiv 2406.15877; Apache-2.0): 1,140 tasks that use 139 libraries, tested by unittest.

`bigcodebench` uses the "complete" prompt, a function to continue; `bigcodebench_instruct` uses the prompt in words. The
LFPO paper does not say which one it uses, but its base row is DiffuCoder's published "BigCodeBench (C)".

The tests patch modules and inspect data frames and figures, so they run in the program's process. Rows that need a
library that is not installed are reported and do not count in the accuracy.
"""

import ast
import contextlib
import functools
import importlib.machinery
import sys

from lfpo.core.scoring import Row
from lfpo.prompts.rows import Record
from lfpo.prompts.tasks.code_task import ACECODE_TRAIN, CodeTask, acecode_or, code_row
from lfpo.prompts.tasks.records import HubSplit
from lfpo.sandbox import installed_libraries
from lfpo.sandbox.syntax import syntax_tree

VERSION = "v0.1.4"


def build(record: Record, prompt: str) -> Row:
    """From `task_id`, `complete_prompt`, `instruct_prompt`, `code_prompt`, `canonical_solution`, `test`, `entry_point`.

    prompt: `complete_prompt` or `instruct_prompt`. As in the benchmark's own scorer, the program starts with the
    imports and an empty function of that name, so that an answer may omit the imports that it was shown.
    """
    start, text, test = record.text("code_prompt").rstrip(), record.text(prompt).strip(), record.text("test")
    solution = f"{start}\n{record.text('canonical_solution')}"
    missing = missing_libraries(solution, test)
    return code_row(
        record.text("task_id"),
        f"Complete this function:\n```python\n{text}\n```" if prompt == "complete_prompt" else text,
        [test],
        solution,
        entry_point=record.text("entry_point"),
        header=f"{start}\n    pass\n",
        together=True,
        needs=f"library {', '.join(missing)}" if missing else "",
    )


_PANDAS_IMPORTS = {
    **dict.fromkeys(("read_excel", "to_excel", "ExcelWriter", "ExcelFile"), "openpyxl"),
    **dict.fromkeys(("read_parquet", "to_parquet", "read_feather", "to_feather"), "pyarrow"),
    **dict.fromkeys(("read_hdf", "to_hdf"), "tables"),
    "read_html": "lxml",
    "to_markdown": "tabulate",
}
"""Functions of pandas, and the library that each imports when it is called."""


def missing_libraries(*sources: str) -> list[str]:
    """Top-level names of the modules that the sources import, or that pandas imports for them, and that are missing. A
    source that is not Python imports nothing."""
    trees = []
    for source in sources:
        with contextlib.suppress(ValueError):
            trees.append(syntax_tree(source))
    attributes = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {_PANDAS_IMPORTS[name] for name in attributes & _PANDAS_IMPORTS.keys()}
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
    hub = (ACECODE_TRAIN, ("test", HubSplit(data_set, VERSION)))
    return CodeTask(name=name, build=acecode_or(functools.partial(build, prompt=prompt)), hub=hub)


FULL, HARD = "bigcode/bigcodebench", "bigcode/bigcodebench-hard"
TASK = _task("bigcodebench", FULL, "complete_prompt")
INSTRUCT = _task("bigcodebench_instruct", FULL, "instruct_prompt")
HARD_TASK = _task("bigcodebench_hard", HARD, "complete_prompt")
HARD_INSTRUCT = _task("bigcodebench_hard_instruct", HARD, "instruct_prompt")
