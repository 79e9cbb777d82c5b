"""Rewards for model-written Python: does it parse, and which share of its tests does it pass in the sandbox."""

from __future__ import annotations

import ast
import builtins
import functools
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..sandbox import Job, Limits, Sandbox

MAX_CHARS = Limits().program_chars
TEST_FIELDS = ("tests", "test_list", "test_cases", "test")
SETUP_FIELDS = ("setup", "test_setup_code", "test_imports")

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def completion_text(completion: Any) -> str:
    """The text of a completion, which is a string or a list of chat messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def extract_code(completion: str, entry_point: str = "") -> str:
    """The first fenced block of Python, or the first that defines the entry point; all of it without a fence.

    A fence that is never closed ends with the text, so an answer cut short still counts.
    """
    blocks = [code for tag, code in _FENCE.findall(completion[:MAX_CHARS]) if tag.lower() in {"", "python", "py"}]
    if not blocks:
        return completion
    defines = [code for code in blocks if entry_point and defined(code, entry_point)]
    return str((defines or blocks)[0])


def defined(code: str, name: str) -> bool:
    """Whether the code seems to define the function or class."""
    return re.search(rf"^(?:async )?(?:def|class) +{re.escape(name)}\b", code, re.MULTILINE) is not None


def parses(code: str) -> bool:
    """Whether this is Python with at least one statement. Nothing is run."""
    if not code.strip() or len(code) > MAX_CHARS:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes and the like
            return bool(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two from deep nesting
        return False


def syntax_compliance(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """1 for a completion whose code is Python, 0 otherwise."""
    return [float(parses(extract_code(completion_text(completion)))) for completion in completions]


def pass_rate(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """The share of its tests that each completion passes, in a sandbox with default limits."""
    return PassRate(_default_sandbox())(prompts, completions, **columns)


class PassRate:
    """`pass_rate` with a sandbox of your own: `PassRate(Sandbox(limits=Limits(seconds=3), libraries=[...]))`.

    Columns are those of the usual data sets: `test` and `entry_point` (HumanEval), `test_list` with `test_setup_code`
    or `test_imports` (MBPP), `test_cases` (AceCode), or `tests` and `setup`; `header` is the source that a completion
    goes on from, by default a prompt that is Python and defines the entry point.
    """

    __name__ = "pass_rate"

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        lists = {name: values for name, values in columns.items() if isinstance(values, Sequence)}
        jobs = []
        for i, completion in enumerate(completions):
            row = {name: values[i] for name, values in lists.items() if len(values) == len(completions)}
            jobs.append(code_job(completion_text(completion), row, prompts[i], f"row {i}"))
        return [verdict.pass_rate for verdict in self.sandbox.run(jobs)]


@functools.cache
def _default_sandbox() -> Sandbox:
    return Sandbox()


def code_job(completion: str, row: Mapping[str, Any], prompt: Any = "", where: str = "row") -> Job:
    """What the sandbox has to judge. Raises UserError when the row has no tests."""
    tests = _tests(row, where)
    entry_point = str(row.get("entry_point") or "")
    setup = "\n".join(_source(row.get(name)) for name in SETUP_FIELDS)
    header = _source(row.get("header"))
    if not header and entry_point and isinstance(prompt, str) and defined(prompt, entry_point) and parses(prompt):
        header = prompt  # HumanEval's prompts are the beginning of the program
    code = extract_code(completion, entry_point)
    if entry_point and any(re.search(r"^def check\(", test, re.MULTILINE) for test in tests):
        tests = [f"{test}\n\ncheck({entry_point})\n" for test in tests]
    return Job(
        program=f"{header}\n{code}" if header else code,  # its imports too, whether the code goes on or begins anew
        entry_point=entry_point or _called(tests),
        tests=tests,
        # helpers that a HumanEval prompt defines belong to the test: the program's own could lie
        setup=f"{setup}\n{header}",
        unittest=any("unittest.TestCase" in test for test in tests),
    )


def _tests(row: Mapping[str, Any], where: str) -> list[str]:
    for name in TEST_FIELDS:
        if value := row.get(name):
            tests = [value] if isinstance(value, str) else list(value)
            if not all(isinstance(test, str) for test in tests):
                raise UserError(f"{where}: field {name!r} must be Python source, or a list of such")
            return tests
    raise UserError(f"{where}: a code reward needs one of the fields {', '.join(TEST_FIELDS)}, with tests in it")


def _source(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else "\n".join(value)


def _called(tests: Sequence[str]) -> str:
    """A built-in function's name where the tests call nothing else: a program may define its own `sum`."""
    names = [
        node.func.id
        for test in tests
        if parses(test)
        for node in ast.walk(ast.parse(test))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return names[0] if len(set(names)) == 1 and hasattr(builtins, names[0]) else ""
