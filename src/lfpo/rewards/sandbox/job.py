"""The sandbox's input and output: Job, Limits and Verdict."""

import ast
import marshal
from collections.abc import Sequence
from dataclasses import dataclass

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox.suite import Suite, code, parsed, read_suite

_UNITTEST = "together=True, because the tests are classes of unittest"


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
    processes: int = 96
    open_files: int = 64
    program_chars: int = 200_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} {value} must be positive")


@dataclass(frozen=True)
class Job:
    """A program, and tests that are Python source.

    program: Python source. entry_point: the function that the tests call; if empty, the only name that they use and do
    not define. functions: other functions of the program that the tests call. Name none that only help a test: the
    program could then decide its verdict.
    tests: sources that pass or fail separately: `assert f(1) == 2`, or a suite that ends in `check(f)`.
    setup: trusted source that runs before the tests. Setup and tests must define all other names that they use.
    unittest: the tests define unittest.TestCase classes, and every test method counts. Only with `together`.
    together: program and tests run in one module of one process. Nothing defends such a verdict from a cheat.
    processes: the program has to start processes or change the metadata of files, which the rung `limits` forbids.
    unclear: why the row of the job cannot be judged in two processes, or "".
    Raises UserError without tests.
    """

    program: str
    entry_point: str = ""
    tests: Sequence[str] = ()
    setup: str = ""
    functions: Sequence[str] = ()
    unittest: bool = False
    together: bool = False
    processes: bool = False
    unclear: str = ""

    def __post_init__(self) -> None:
        if not self.tests:
            raise UserError("a sandbox job needs tests")

    @property
    def suite(self) -> Suite:
        """What the tests take from the program. Raises UserError for a test that is not Python."""
        return read_suite(tuple(self.tests), self.setup, self.entry_point, tuple(self.functions))

    @property
    def needs(self) -> str:
        """Why the job cannot be judged, or "". It depends on the tests, never on the program."""
        try:
            needs = self.unclear or self.suite.needs or _UNITTEST * self.unittest
        except UserError as error:
            return f"tests that are Python ({error})"
        return "" if self.together else needs


@dataclass(frozen=True)
class Verdict:
    """passed: whether every test passed. reason: the first failure, "" if passed. seconds: wall time of the job.

    tests: for each test or test method in order, whether it passed. needs: what is missing to judge the job, or "". A
    job with needs was not run, whatever its program. late: the time limit ended it.
    """

    passed: bool
    reason: str
    seconds: float
    tests: tuple[bool, ...]
    needs: str = ""
    late: bool = False

    @property
    def pass_rate(self) -> float:
        """The share of the tests that passed."""
        return sum(self.tests) / len(self.tests) if self.tests else 0.0


def failed(job: Job, reason: str, needs: str = "") -> Verdict:
    """The verdict of a job that is not run."""
    return Verdict(False, reason, 0.0, (False,) * len(job.tests), needs)


def encode_job(job: Job, nonce: bytes = b"") -> bytes:
    """The job as bytes for the judge. Raises UserError for a test that is not Python."""
    if job.together:
        sources = [parsed(source, "a test", job.entry_point) for source in (job.setup, *job.tests)]
        setup, *tests = (code(source, "<test>") for source in sources)
    else:
        setup, *tests = job.suite.setup, *job.suite.tests
    return marshal.dumps(
        {
            "program": job.program,
            "unittest": job.unittest,
            "together": job.together,
            "functions": () if job.together else job.suite.names,
            "setup": setup,
            "tests": tests,
            "nonce": nonce,
        }
    )


def count_tests(job: Job) -> int:
    """Number of tests, or of test methods in the tests' classes. Raises UserError for a test that is not Python."""
    if not job.unittest:
        return len(job.tests)
    trees = [parsed(source, f"test {number}", job.entry_point) for number, source in enumerate(job.tests)]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    names = [{n.name for n in found.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)} for found in classes]
    return sum(name.startswith("test") for defined in names for name in defined)
