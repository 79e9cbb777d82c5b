"""Rewards for model-written Python: whether it parses, and the share of its tests that it passes in the sandbox."""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lfpo.base.errors import UserError
from lfpo.rewards.answers import completion_text
from lfpo.rewards.sandbox import Job, Limits, Sandbox, Verdict, installed_libraries
from lfpo.rewards.sandbox.job import failed
from lfpo.rewards.sandbox.rungs import Unsafe
from lfpo.rewards.sandbox.suite import names_in_solution

MAX_CHARS = Limits().program_chars
MAX_CACHED = 20_000
"""Verdicts that a grader keeps."""
DEFAULT_LIMITS = Limits(seconds=20)
"""Wall time is twice the CPU time, for a busy machine."""
UNSAFE = "LFPO_UNSAFE_SANDBOX"
"""Environment variable: 1 allows programs to run under resource limits only, where the machine has no sandbox; `root`
allows it to root too."""
_UNSAFE: dict[str, Unsafe] = {"1": True, "root": "root"}
TEST_FIELDS = ("tests", "test_list", "test_cases", "test")
SETUP_FIELDS = ("setup", "test_setup_code", "test_imports")

_PROCESSES = re.compile(
    r"\b(?:subprocess|multiprocessing|ProcessPoolExecutor|create_subprocess_\w+|shutil\.(?:copy|copy2|copytree|move)"
    r"|os\.(?:system|popen|fork|spawn\w+|kill|chmod|chown|utime))\b"
)
_TEST_CASE = re.compile(r"^class +\w+\([^)]*\bTestCase\b", re.MULTILINE)
_OPEN = re.compile(r"```[ \t]*+(\w*+)")
_ONE_PROCESS = "one process for program and tests (together), because there the row's solution passes, in two not: {}"
SOLUTION_FIELDS = ("solution", "code", "canonical_solution")


def extract_code(completion: str, entry_point: str = "") -> str:
    """The first fenced Python block that defines the entry point, else the first one, else the whole completion.

    A fence that is never closed ends with the text, so a truncated answer still counts. A completion longer than
    MAX_CHARS is not searched; it scores 0.
    """
    if len(completion) > MAX_CHARS:
        return completion
    blocks = [code for tag, code in fenced_blocks(completion) if tag.lower() in {"", "python", "python3", "py"}]
    if not blocks:
        return completion
    defines = [code for code in blocks if entry_point and defined(code, entry_point)]
    return str((defines or blocks)[0])


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Language tag and content of each fenced block, in time linear in the text. The last block may lack its end."""
    blocks: list[tuple[str, str]] = []
    lines = text.split("\n")
    tag, begin = "", -1  # begin: the first line of the open block
    for number, line in enumerate(lines):
        if not (stripped := line.lstrip(" \t")).startswith("```"):
            continue
        if begin >= 0:
            blocks.append((tag, "".join(f"{inner}\n" for inner in lines[begin:number])))
            begin = -1
        elif number + 1 < len(lines) and (opened := _OPEN.match(stripped)):
            tag, begin = opened.group(1), number + 1
    if begin >= 0:
        blocks.append((tag, "\n".join(lines[begin:])))
    return blocks


def defined(code: str, name: str) -> bool:
    """Whether a line of the code starts the definition of this function or class."""
    return re.search(rf"^(?:async )?(?:def|class) +{re.escape(name)}\b", code, re.MULTILINE) is not None


def parses(code: str) -> bool:
    """Whether the code is Python with at least one statement. Nothing is run."""
    if not code.strip() or len(code) > MAX_CHARS:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like
            return bool(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # deep nesting raises the last two
        return False


def syntax_compliance(
    prompts: Sequence[Any], completions: Sequence[Any], entry_point: Sequence[str] | None = None, **columns: Any
) -> list[float]:
    """1 for a completion whose code parses as Python, else 0."""
    names = entry_point or [""] * len(completions)
    codes = [extract_code(completion_text(c), name or "") for c, name in zip(completions, names, strict=True)]
    return [float(parses(code)) for code in codes]


def pass_rate(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The share of its tests that each completion passes, in a sandbox with DEFAULT_LIMITS."""
    return default_grader().pass_rate(prompts, completions, **columns)


def all_tests_pass(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """1 for a completion that passes every test, else 0, in a sandbox with DEFAULT_LIMITS."""
    return default_grader().all_tests_pass(prompts, completions, **columns)


def code_format(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """coupled-GRPO: 1 for exactly one closed ```python fence around code that parses, 0.5 if it does not parse."""
    return [_format(completion_text(completion)) for completion in completions]


def _format(text: str) -> float:
    blocks = fenced_blocks(text) if len(text) <= MAX_CHARS else []
    if len(blocks) != 1 or blocks[0][0] != "python" or text.count("```") != 2:
        return 0.0
    return 1.0 if parses(blocks[0][1]) else 0.5


def formatted_pass_rate(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """coupled-GRPO: the pass rate of completions whose code_format is 1, and 0 for the others."""
    good = [format == 1.0 for format in code_format(prompts, completions)]
    asked = [completion if keep else "" for keep, completion in zip(good, completions, strict=True)]
    rates = pass_rate(prompts, asked, **columns)
    return [rate if keep or rate is None else 0.0 for keep, rate in zip(good, rates, strict=True)]


class Grader:
    """Runs completions in a sandbox, one batch at a time. Verdicts are cached, so two rewards run a program once.

    `Grader(Sandbox(limits=Limits(seconds=3), libraries=[...])).pass_rate` is a reward function. Without a sandbox, the
    first call creates one with `limits` and the libraries of this environment.

    Columns are those of the usual data sets: `test` and `entry_point` (HumanEval), `test_list` with `test_setup_code`
    or `test_imports` (MBPP), `test_cases` (AceCode), or `tests` and `setup`. `header` is the source that a completion
    continues; its default is the prompt, if that is Python and defines the entry point. `together` marks suites that
    share the program's process. `functions` and `classes` name what else the tests take from the program; by default
    they are read from the row's solution (`solution`, `code` or `canonical_solution`). A row with text in `needs`, or
    whose tests cannot be judged (docs/sandbox.md), has no reward: None. With `check_solutions` that includes rows whose
    solution passes its tests in one process, but not with the tests in another process.
    """

    def __init__(
        self, sandbox: Sandbox | None = None, limits: Limits | None = None, check_solutions: bool = True
    ) -> None:
        self._sandbox, self._limits, self._check_solutions = sandbox, limits, check_solutions
        self._cache: OrderedDict[bytes, Verdict] = OrderedDict()

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, created at the first use. Raises UserError if this machine has none."""
        if self._sandbox is None:
            unsafe = _UNSAFE.get(os.environ.get(UNSAFE, ""), False)
            self._sandbox = Sandbox(limits=self._limits, libraries=installed_libraries(), unsafe=unsafe)
        return self._sandbox

    def pass_rate(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The share of its tests that each completion passes."""
        verdicts = self.verdicts(prompts, completions, columns)
        return [None if verdict is None or verdict.needs else verdict.pass_rate for verdict in verdicts]

    def all_tests_pass(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """1 for a completion that passes every test, else 0."""
        verdicts = self.verdicts(prompts, completions, columns)
        return [None if verdict is None or verdict.needs else float(verdict.passed) for verdict in verdicts]

    def verdicts(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> list[Verdict | None]:
        """One verdict for each completion, None if the row has `needs`. Raises UserError for a row without tests."""
        lists = {name: values for name, values in columns.items() if isinstance(values, Sequence)}
        jobs: list[Job | None] = []
        solutions: list[Job | None] = []
        for i, completion in enumerate(completions):
            row = {name: values[i] for name, values in lists.items() if len(values) == len(completions)}
            job = None if row.get("needs") else code_job(completion_text(completion), row, prompts[i], f"row {i}")
            jobs.append(job)
            solution = _solution(row) if self._check_solutions and job and not (job.together or job.needs) else ""
            solutions.append(code_job(solution, row, prompts[i]) if solution else None)
        judged = self._judged([*jobs, *solutions])
        verdicts, right = judged[: len(jobs)], judged[len(jobs) :]
        doubtful = [
            job and replace(job, together=True) if verdict and not verdict.passed else None
            for job, verdict in zip(solutions, right, strict=True)
        ]
        needs = [
            _ONE_PROCESS.format(two.reason) if one and two and one.passed else ""
            for one, two in zip(self._judged(doubtful), right, strict=True)
        ]
        return [
            failed(job, f"not judged: needs {missing}", missing) if job and missing else verdict
            for job, verdict, missing in zip(jobs, verdicts, needs, strict=True)
        ]

    def _judged(self, jobs: Sequence[Job | None]) -> list[Verdict | None]:
        """Verdicts of all jobs, in one batch; programs that do not parse fail without a process."""
        keys = [b"" if job is None else hashlib.sha256(repr(job).encode("utf-8", "replace")).digest() for job in jobs]
        new = {k: job for k, job in zip(keys, jobs, strict=True) if job is not None and k not in self._cache}
        judged = {k: _not_python(job) for k, job in new.items() if not job.needs and not parses(job.program)}
        running = {k: job for k, job in new.items() if k not in judged}
        if running:
            judged.update(zip(running, self.sandbox.run(list(running.values())), strict=True))
        verdicts = [None if job is None else judged.get(k) or self._cache[k] for k, job in zip(keys, jobs, strict=True)]
        self._cache.update(judged)
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)
        return verdicts


def needs_of(row: Mapping[str, Any]) -> str:
    """What a row's tests lack to be judged, or "". Raises UserError if the row has no tests."""
    return str(row.get("needs") or "") or code_job("", row).needs


def _not_python(job: Job) -> Verdict:
    too_long = f"the program is longer than {MAX_CHARS} characters"
    return failed(job, too_long if len(job.program) > MAX_CHARS else "the program is not Python")


@functools.cache
def default_grader() -> Grader:
    """The grader that `pass_rate` and `all_tests_pass` share, so that a program runs once for both."""
    return Grader(limits=DEFAULT_LIMITS)


def code_job(completion: str, row: Mapping[str, Any], prompt: Any = "", where: str = "row") -> Job:
    """The sandbox job of one completion. Raises UserError if the row has no tests."""
    tests = _tests(row, where)
    entry_point = str(row.get("entry_point") or "")
    setup = "\n".join(_source(row.get(name)) for name in SETUP_FIELDS)
    header = _source(row.get("header"))
    if not header and entry_point and isinstance(prompt, str) and defined(prompt, entry_point) and parses(prompt):
        header = prompt  # a HumanEval prompt is the beginning of the program
    code = extract_code(completion, entry_point)
    if entry_point and any(re.search(r"^def check\(", test, re.MULTILINE) for test in tests):
        called = f"check({entry_point})"
        tests = [test if re.search(r"^check\(", test, re.MULTILINE) else f"{test}\n\n{called}\n" for test in tests]
    entry_point = entry_point or _shadowed_builtin(tests)
    setup = f"{setup}\n{header}"  # helpers that a prompt defines count as the suite's: the program could redefine them
    functions, classes, imports = _taken_names(row, tests, setup, entry_point)
    return Job(
        program=f"{header}\n{code}" if header else code,  # also if the code repeats the header: it may lack the imports
        entry_point=entry_point,
        tests=tests,
        setup=f"{imports}\n{setup}" if imports else setup,
        functions=functions,
        classes=classes,
        unittest=any(_TEST_CASE.search(test) for test in tests),
        together=bool(row.get("together")),
        processes=any(_PROCESSES.search(source) for source in (_solution(row), setup, *tests)),
    )


def _taken_names(
    row: Mapping[str, Any], tests: Sequence[str], setup: str, entry_point: str
) -> tuple[Sequence[str], Sequence[str] | None, str]:
    """The functions and classes that the tests take from the program, and imports that the tests lack.

    From the columns `functions` and `classes`, else from the row's solution. Classes are None if neither says.
    """
    functions, classes = row.get("functions"), row.get("classes")
    if functions is not None or classes is not None or row.get("together"):
        return tuple(functions or ()), None if classes is None else tuple(classes), ""
    solution = _solution(row)
    if not parses(solution):
        return (), None, ""
    try:
        return names_in_solution(tuple(tests), setup, entry_point, solution)
    except UserError:  # a test or the setup is not Python, which the job's `needs` says
        return (), None, ""


def _solution(row: Mapping[str, Any]) -> str:
    return next((row[name] for name in SOLUTION_FIELDS if isinstance(row.get(name), str) and row[name]), "")


def _tests(row: Mapping[str, Any], where: str) -> list[str]:
    for name in TEST_FIELDS:
        if value := row.get(name):
            tests = [value] if isinstance(value, str) else list(value)
            if not all(isinstance(test, str) for test in tests):
                raise UserError(f"{where}: field {name!r} must be Python source, or a list of Python sources")
            return tests
    raise UserError(f"{where}: a code reward needs one of the fields {', '.join(TEST_FIELDS)}, with tests in it")


def _source(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else "\n".join(value)


def _shadowed_builtin(tests: Sequence[str]) -> str:
    """The built-in function that is all the tests call, or "": the program then defines its own `sum`, say."""
    names = [
        node.func.id
        for test in tests
        if parses(test)
        for node in ast.walk(ast.parse(test))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    is_one = len(set(names)) == 1 and hasattr(builtins, names[0]) and names[0] not in {"eval", "exec"}
    return names[0] if is_one else ""
