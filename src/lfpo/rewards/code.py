"""Rewards for model-written Python: whether it parses, and the share of its tests that it passes in the sandbox."""

import ast
import builtins
import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lfpo.config.errors import UserError
from lfpo.rewards.answers import completion_text
from lfpo.rewards.each import each
from lfpo.rewards.program import MAX_CHARS, defined, extract_code, fenced_blocks, parses
from lfpo.sandbox import Job, Limits, Sandbox, Verdict, installed_libraries
from lfpo.sandbox.launch import Unsafe
from lfpo.sandbox.run_job import decided, failed
from lfpo.sandbox.suite import names_in_solution, read_suite

MAX_CACHED = 20_000  # verdicts of a grader
DEFAULT_LIMITS = Limits(seconds=20)
"""Wall time is twice the CPU time, for a busy machine."""
UNSAFE = "LFPO_UNSAFE_SANDBOX"  # environment variable
_UNSAFE: dict[str, Unsafe] = {"1": True, "root": "root"}
TEST_FIELDS = ("tests", "test_list", "test_cases", "test")
SETUP_FIELDS = ("setup", "test_setup_code", "test_imports")

_PROCESSES = re.compile(
    r"\b(?:subprocess|multiprocessing|ProcessPoolExecutor|create_subprocess_\w+|shutil\.(?:copy|copy2|copytree|move)"
    r"|os\.(?:system|popen|fork|spawn\w+|kill|chmod|chown|utime))\b"
)
_TEST_CASE = re.compile(r"^class +\w+\([^)]*\bTestCase\b", re.MULTILINE)
_ONE_PROCESS = "one process for program and tests (together), because there the row's solution passes, in two not: {}"
_TOGETHER = "one process for program and tests (together=True), where a program can decide its verdict"
SOLUTION_FIELDS = ("solution", "code", "canonical_solution")


def syntax_compliance(
    prompts: Sequence[object],
    completions: Sequence[object],
    entry_point: Sequence[str] | None = None,
    **columns: object,
) -> list[float]:
    """1 for a completion whose code parses as Python, else 0."""
    names = entry_point or [""] * len(completions)
    codes = [extract_code(completion_text(c), name or "") for c, name in zip(completions, names, strict=True)]
    return [float(parses(code)) for code in codes]


def pass_rate(prompts: Sequence[object], completions: Sequence[object], **columns: object) -> list[float | None]:
    """The share of its tests that each completion passes, in a sandbox with DEFAULT_LIMITS."""
    return _GRADER.pass_rate(prompts, completions, **columns)


def all_tests_pass(prompts: Sequence[object], completions: Sequence[object], **columns: object) -> list[float | None]:
    """1 for a completion that passes every test, else 0, in a sandbox with DEFAULT_LIMITS."""
    return _GRADER.all_tests_pass(prompts, completions, **columns)


@each
def code_format(text: str) -> float:
    """coupled-GRPO: 1 for exactly one closed ```python fence around code that parses, 0.5 if it does not parse."""
    blocks = fenced_blocks(text) if len(text) <= MAX_CHARS else []
    if len(blocks) != 1 or blocks[0][0] != "python" or text.count("```") + text.count("~~~") != 2:
        return 0.0
    return 1.0 if parses(blocks[0][1]) else 0.5


def formatted_pass_rate(
    prompts: Sequence[object], completions: Sequence[object], **columns: object
) -> list[float | None]:
    """coupled-GRPO: the pass rate of completions whose code_format is 1, and 0 for the others."""
    good = [format == 1.0 for format in code_format(prompts, completions)]
    formatted = [completion if keep else "" for keep, completion in zip(good, completions, strict=True)]
    rates = pass_rate(prompts, formatted, **columns)
    return [rate if keep or rate is None else 0.0 for keep, rate in zip(good, rates, strict=True)]


class Grader:
    """Runs completions in a sandbox, one batch at a time. Verdicts are cached, so two rewards run a program once; those
    that a time limit ended are not, because a busy machine may be to blame.

    `Grader(Sandbox(limits=Limits(seconds=3), libraries=[...])).pass_rate` is a reward function. Without a sandbox, the
    first call creates one with `limits` and the libraries of this environment.

    Columns are those of the usual data sets: `test` and `entry_point` (HumanEval), `test_list` with `test_setup_code`
    or `test_imports` (MBPP), `test_cases` (AceCode), or `tests` and `setup`. `header` is the source that a completion
    continues; its default is the prompt, if that is Python and defines the entry point. `functions` names what else
    the tests take from the program; by default it is read from the row's solution (`solution`, `code` or
    `canonical_solution`), and what only helps the tests comes from that solution. A row with text in `needs`, or whose
    tests cannot be judged (docs/sandbox.md), has no reward: None. With `check_solutions` that includes rows whose
    solution passes its tests in one process, but not with the tests in another process. A completion whose result only
    the completion itself could compare has no reward either, unless the row has a solution that can be judged: then 0.

    together: judge rows that need one process for program and tests (a column `together`, or tests that only work so).
    A program can decide such a verdict, so use it for evaluation, not for training.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        limits: Limits | None = None,
        check_solutions: bool = True,
        together: bool = False,
    ) -> None:
        self._sandbox, self._limits, self._check_solutions = sandbox, limits, check_solutions
        self._together = together
        self._cache: OrderedDict[bytes, Verdict] = OrderedDict()

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, created at the first use. Raises UserError if this machine has none."""
        if self._sandbox is None:
            unsafe = _UNSAFE.get(os.environ.get(UNSAFE, ""), False)
            self._sandbox = Sandbox(limits=self._limits, libraries=installed_libraries(), unsafe=unsafe)
        return self._sandbox

    def pass_rate(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> list[float | None]:
        """The share of its tests that each completion passes."""
        verdicts = self.verdicts(prompts, completions, columns)
        return [None if verdict is None or verdict.needs else verdict.pass_rate for verdict in verdicts]

    def all_tests_pass(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> list[float | None]:
        """1 for a completion that passes every test, else 0."""
        verdicts = self.verdicts(prompts, completions, columns)
        return [None if verdict is None or verdict.needs else float(verdict.passed) for verdict in verdicts]

    def verdicts(
        self, prompts: Sequence[object], completions: Sequence[object], columns: Mapping[str, object]
    ) -> list[Verdict | None]:
        """One verdict for each completion, None if the row has `needs`. Raises UserError for a row without tests."""
        lists = {name: values for name, values in columns.items() if isinstance(values, Sequence)}
        jobs: list[Job | None] = []
        solutions: list[Job | None] = []
        for i, completion in enumerate(completions):
            row = {name: values[i] for name, values in lists.items() if len(values) == len(completions)}
            job = None if row.get("needs") else code_job(completion_text(completion), row, prompts[i], f"row {i}")
            if job and self._together and job.needs and not job.needs.startswith("tests that are Python"):
                job = replace(job, together=True)
            jobs.append(job)
            solution = _solution(row) if job and not (job.together or job.needs) else ""
            solutions.append(code_job(solution, row, prompts[i]) if solution else None)
        references = self._judged(solutions) if self._check_solutions else [None] * len(jobs)
        needs = self._lost_in_two(solutions, references)
        if self._together:
            jobs = [replace(job, together=True) if job and why else job for job, why in zip(jobs, needs, strict=True)]
            needs = [""] * len(jobs)
        else:
            needs = [_TOGETHER if job and job.together else why for job, why in zip(jobs, needs, strict=True)]
        judged = self._judged([None if why else job for job, why in zip(jobs, needs, strict=True)])
        known = [
            solution is not None and not (reference and (reference.needs or reference.late))
            for solution, reference in zip(solutions, references, strict=True)
        ]
        return [
            failed(job, f"not judged: needs {why}", why) if job and why else decided(v) if v and judgeable else v
            for job, v, why, judgeable in zip(jobs, judged, needs, known, strict=True)
        ]

    def _lost_in_two(self, solutions: Sequence[Job | None], two: Sequence[Verdict | None]) -> list[str]:
        """Why each row must be judged in one process, "" if its solution passes as many tests in two.

        two: the solutions' verdicts with two processes, None if not known. A solution that fails in both is wrong about
        its tests, and says nothing.
        """
        doubtful = [job if v and not v.passed else None for job, v in zip(solutions, two, strict=True)]
        one = self._judged([job and replace(job, together=True) for job in doubtful])
        return [
            _ONE_PROCESS.format(a.reason) if a and b and sum(b.tests) > sum(a.tests) else ""
            for a, b in zip(two, one, strict=True)
        ]

    def _judged(self, jobs: Sequence[Job | None]) -> list[Verdict | None]:
        """Verdicts of all jobs, in one batch; programs that do not parse fail without a process."""
        keys = [b"" if job is None else hashlib.sha256(repr(job).encode("utf-8", "replace")).digest() for job in jobs]
        new = {k: job for k, job in zip(keys, jobs, strict=True) if job is not None and k not in self._cache}
        judged: dict[bytes, Verdict] = {}
        for k, job in new.items():
            if not job.needs and not parses(job.program):
                long = len(job.program) > MAX_CHARS
                judged[k] = failed(
                    job, f"the program is {f'longer than {MAX_CHARS} characters' if long else 'not Python'}"
                )
        if running := {k: job for k, job in new.items() if k not in judged}:
            judged.update(zip(running, self.sandbox.run(list(running.values())), strict=True))
        verdicts = [None if job is None else judged.get(k) or self._cache[k] for k, job in zip(keys, jobs, strict=True)]
        self._cache.update({k: verdict for k, verdict in judged.items() if not verdict.late})
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)
        return verdicts


_GRADER = Grader(limits=DEFAULT_LIMITS)  # of `pass_rate` and `all_tests_pass`: a program runs once for both


def code_job(completion: str, row: Mapping[str, object], prompt: object = "", where: str = "row") -> Job:
    """The sandbox job of one completion. Raises UserError if the row has no tests."""
    tests = _tests(row, where)
    entry_point = str(row.get("entry_point") or "")
    setup = "\n".join(_source(row.get(name)) for name in SETUP_FIELDS)
    header = _source(row.get("header"))
    if not header and entry_point and isinstance(prompt, str) and entry_point in defined(prompt) and parses(prompt):
        header = prompt  # a HumanEval prompt is the beginning of the program
    if entry_point and any(re.search(r"^def check\(", test, re.MULTILINE) for test in tests):
        called = f"check({entry_point})"
        tests = [test if re.search(r"^check\(", test, re.MULTILINE) else f"{test}\n\n{called}\n" for test in tests]
    entry_point = entry_point or _shadowed_builtin(tests)
    setup = f"{setup}\n{header}"  # helpers that a prompt defines count as the suite's: the program could redefine them
    functions, source, unclear = _taken_names(row, tests, setup, entry_point)
    names = [entry_point] if entry_point else functions or _names_of_suite(tests, setup)
    code = extract_code(completion, *names)
    return Job(
        program=f"{header}\n{code}" if header else code,  # also if the code repeats the header: it may lack the imports
        entry_point=entry_point,
        tests=tests,
        setup=f"{source}\n{setup}" if source else setup,
        functions=functions,
        unittest=any(_TEST_CASE.search(test) for test in tests),
        together=bool(row.get("together")),
        processes=any(_PROCESSES.search(source) for source in (_solution(row), setup, *tests)),
        unclear=unclear,
    )


def _taken_names(
    row: Mapping[str, Any], tests: Sequence[str], setup: str, entry_point: str
) -> tuple[Sequence[str], str, str]:
    """The functions that the tests take from the program, source that they take from the row's solution, and why they
    cannot be judged in two processes. From the column `functions`, else from the row's solution."""
    solution = _solution(row)
    if row.get("functions") is not None or row.get("together") or not parses(solution):
        return tuple(row.get("functions") or ()), "", ""
    try:
        return names_in_solution(tuple(tests), setup, entry_point, solution)
    except UserError:  # a test or the setup is not Python, which the job's `needs` says
        return (), "", ""


def _names_of_suite(tests: Sequence[str], setup: str) -> Sequence[str]:
    """What a suite without an entry point takes from the program."""
    try:
        return read_suite(tuple(tests), setup, "", ()).names
    except UserError:  # a test or the setup is not Python, which the job's `needs` says
        return ()


def _solution(row: Mapping[str, Any]) -> str:
    return next((row[name] for name in SOLUTION_FIELDS if isinstance(row.get(name), str) and row[name]), "")


def _tests(row: Mapping[str, Any], where: str) -> list[str]:
    for name in TEST_FIELDS:
        if value := row.get(name):
            return [value] if isinstance(value, str) else list(value)
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
