"""The sandbox's input and output: Job, Call, Limits and Verdict."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox.inside import wire
from lfpo.rewards.sandbox.suite import Suite, parsed, read_suite


@dataclass(frozen=True)
class Limits:
    """Resource limits of one job. Sizes are in bytes. Raises ValueError unless all are positive.

    seconds: wall time of the whole job. cpu_seconds: CPU time of one process. memory: address space of one process.
    disk: all files in /tmp, and as much in /dev/shm. files: number of files and folders in each of them. file_size: one
    file. processes: at any one time. open_files: of one process.
    program_chars: a longer program fails without being run.
    """

    seconds: float = 10.0
    cpu_seconds: int = 10
    memory: int = 2**30
    disk: int = 64 * 2**20
    files: int = 10_000
    file_size: int = 16 * 2**20
    processes: int = 32
    open_files: int = 64
    program_chars: int = 200_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} {value} must be positive")


@dataclass(frozen=True)
class Call:
    """One call of the entry point and the value it must return."""

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A program, and either calls with expected values or tests that are Python source.

    program: Python source. entry_point: the function that calls and tests call; if empty, the only name that the tests
    use and do not define. functions: other functions of the program that the tests call.
    classes: the program's classes that the tests use. None: not known; the tests are then not judged if they seem to
    use one. Only with classes may the program return instances, and such tests are easier to cheat (docs/sandbox.md).
    tests: sources that pass or fail separately: `assert f(1) == 2`, or a suite that ends in `check(f)`.
    setup: trusted source that runs before the tests. Setup and tests must define all other names that they use.
    unittest: the tests define unittest.TestCase classes, and every test method counts.
    together: program and tests run in one module of one process, for suites that patch the program's modules or inspect
    objects of other than built-in types. Such a verdict is easier to cheat (docs/sandbox.md).
    processes: the program has to start processes or change the metadata of files, which the rung `limits` forbids.
    tolerance: for floats returned by calls; relative if the expected value is above 1, else absolute.
    Raises UserError for an inconsistent combination.
    """

    program: str
    entry_point: str = ""
    calls: Sequence[Call] = ()
    tests: Sequence[str] = ()
    setup: str = ""
    functions: Sequence[str] = ()
    classes: Sequence[str] | None = None
    unittest: bool = False
    together: bool = False
    processes: bool = False
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.calls) == bool(self.tests):
            raise UserError("a sandbox job needs either calls or tests, and not both")
        if self.calls and not self.entry_point:
            raise UserError("a sandbox job with calls needs the name of the entry point")
        if self.together and not self.tests:
            raise UserError("together=True in a sandbox job needs tests")

    @property
    def suite(self) -> Suite:
        """What the tests take from the program. Raises UserError for a test that is not Python."""
        classes = None if self.classes is None else tuple(self.classes)
        if self.calls:
            classes = classes or ()
        return read_suite(tuple(self.tests), self.setup, self.entry_point, tuple(self.functions), classes)

    @property
    def needs(self) -> str:
        """Why the job cannot be judged, or "". It depends on the tests, never on the program."""
        try:
            if not self.together:
                return self.suite.needs
            for number, test in enumerate(self.tests):
                parsed(test, f"test {number}", self.entry_point)
            return ""
        except UserError as error:
            return f"tests that are Python ({error})"


@dataclass(frozen=True)
class Verdict:
    """passed: whether every test passed. reason: the first failure, "" if passed. seconds: wall time of the job.

    tests: for each test, call or test method in order, whether it passed. needs: what is missing to judge the job, or
    "". A job with needs was not run, whatever its program.
    """

    passed: bool
    reason: str
    seconds: float
    tests: tuple[bool, ...]
    needs: str = ""

    @property
    def pass_rate(self) -> float:
        """The share of the tests that passed."""
        return sum(self.tests) / len(self.tests) if self.tests else 0.0


def failed(job: Job, reason: str, needs: str = "") -> Verdict:
    """The verdict of a job that is not run."""
    return Verdict(False, reason, 0.0, (False,) * len(job.calls or job.tests), needs)


def encode_job(job: Job) -> bytes:
    """The job as bytes for the judge. Raises UserError for a test that is not Python, or a value of another type."""
    content = {
        **vars(job.suite),
        "program": job.program,
        "calls": [(call.args, dict(call.kwargs), call.expected) for call in job.calls],
        "tests": list(job.tests),
        "setup": job.setup,
        "unittest": job.unittest,
        "tolerance": float(job.tolerance),
    }
    try:
        return wire.encode(content)
    except wire.NotAValue as error:
        raise UserError(f"entry point {job.entry_point!r}: values of a call must be plain data; {error}") from error


def encode_suite(job: Job, nonce: bytes) -> bytes:
    """The job as bytes for the one process in which program and tests run together."""
    content = {"program": job.program, "setup": job.setup, "tests": list(job.tests), "unittest": job.unittest}
    if not job.unittest:
        content["setup"] = "\n".join([*map(_import_statement, job.suite.imports), job.setup])
    return wire.encode({**content, "nonce": nonce})


def _import_statement(found: tuple[str, str, str]) -> str:
    name, module, member = found
    return f"from {module} import {member} as {name}" if member else f"import {module} as {name}"


def count_tests(job: Job) -> int:
    """Number of tests, or of test methods in the tests' classes. Raises UserError for a test that is not Python."""
    if not job.unittest:
        return len(job.calls or job.tests)
    trees = [parsed(source, f"test {number}", job.entry_point) for number, source in enumerate(job.tests)]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = [{node.name for node in found.body if isinstance(node, functions)} for found in classes]
    return sum(name.startswith("test") for defined in names for name in defined)
