"""MBPP (Austin et al., arXiv 2108.07732; CC-BY-4.0): short problems with three assertions each; the full form.

The prompt shows the first assertion, which names the function, and hides the others, as EvalPlus does. With all three
shown, a program could simply look up the expected values.

MBPP+ (Liu et al., arXiv 2305.01210; Apache-2.0) has 378 corrected problems with about 35 times as many tests. It trains
on MBPP's training rows, except those that are also in its own test split.
"""

import ast

from lfpo.prompts.tasks.code_task import CodeTask, code_row
from lfpo.prompts.tasks.records import HubSplit, Record
from lfpo.prompts.tasks.task import Row


def build(record: Record) -> Row:
    """From `task_id`, `text` (`prompt` in the sanitized form), `code`, `test_list`, and the code that the tests need.

    That code is in `test_setup_code` or in the list `test_imports`.
    """
    setup = record["test_imports"] if "test_imports" in record else [record.values.get("test_setup_code") or ""]
    if not isinstance(setup, list) or not all(isinstance(line, str) for line in setup):
        raise record.wrong(
            "test_imports" if "test_imports" in record else "test_setup_code", "Python, as text or texts"
        )
    tests = record.texts("test_list")
    return problem_row(record, tests, setup, tests[0])


def problem_row(record: Record, tests: list[str], setup: list[str], shown: str) -> Row:
    """A row that is scored by `tests` and shows one assertion in its prompt."""
    text, code = record.text("text" if "text" in record else "prompt").strip(), record.text("code")
    return code_row(
        f"Mbpp/{record.integer('task_id', 0, 10**6)}",
        f"{text}\nThe program must pass tests such as this one:\n```python\n{shown.strip()}\n```",
        tests,
        code,
        entry_point=called_function(shown, code),
        setup="\n".join(setup),
    )


def called_function(assertion: str, code: str) -> str:
    """Name of the function in `code` that an assertion calls; it may shadow a built-in such as `sum`. Empty if none."""
    try:
        calls, program = ast.walk(ast.parse(assertion.strip())), ast.parse(code)
    except SyntaxError:
        return ""
    defined = {node.name for node in program.body if isinstance(node, ast.FunctionDef)}
    names = (call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name))
    return next((name for name in names if name in defined), "")


def build_plus(record: Record) -> Row:
    """From `task_id`, `prompt`, `code`, `test_list` (the prompt shows its first) and `test` (the graded suite)."""
    if "test" not in record and "text" in record:
        return build(record)
    return problem_row(record, [record.text("test")], [], record.texts("test_list")[0])


_HUB = tuple((split, HubSplit("google-research-datasets/mbpp", split, ("full",))) for split in ("train", "test"))
TASK = CodeTask(name="mbpp", build=build, hub=_HUB)
PLUS = CodeTask(name="mbpp_plus", build=build_plus, hub=(_HUB[0], ("test", HubSplit("evalplus/mbppplus", "test"))))

KNOWN_BROKEN = {"Mbpp/255": "returns millions of tuples, which need more memory than the limit allows"}
"""Rows of MBPP+ whose reference solution fails here. They count in the accuracy."""
