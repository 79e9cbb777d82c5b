"""`Sandbox` runs jobs, each in two new confined processes, the program's and the judge's, connected by pipes.

A job with `together` has one process. All processes are killed when the verdict is known.
"""

import ast
import contextlib
import marshal
import os
import queue
import secrets
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

from lfpo.config.errors import UserError
from lfpo.sandbox import launch
from lfpo.sandbox.inside import values
from lfpo.sandbox.launch import Limits
from lfpo.sandbox.suite import FUNCTIONS, Suite, code, parsed, read_suite

_MAX_REPORT = 16 * 2**20
_INTERVAL = 0.1
"""Seconds between two looks at memory, and at the disk on the rung `limits`."""
_BUBBLEWRAP = "the rung bubblewrap, because correct programs start processes or change metadata of files"
_UNITTEST = "together=True, because the tests are classes of unittest"


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
    job with needs was not run, or is undecided. undecided: numbers of the tests that only the program could decide.
    late: the time limit ended it.
    """

    passed: bool
    reason: str
    seconds: float
    tests: tuple[bool, ...]
    needs: str = ""
    late: bool = False
    undecided: tuple[int, ...] = ()

    @property
    def pass_rate(self) -> float:
        """The share of the tests that passed."""
        return sum(self.tests) / len(self.tests) if self.tests else 0.0


def decided(verdict: Verdict) -> Verdict:
    """The verdict where the row has a reference solution that could be judged: a program that returns what only it
    could compare then fails by its own choice."""
    return replace(verdict, needs="", undecided=()) if verdict.undecided else verdict


def failed(job: Job, reason: str, needs: str = "") -> Verdict:
    """The verdict of a job that is not run."""
    return Verdict(False, reason, 0.0, (False,) * len(job.tests), needs)


def encode_job(job: Job, nonce: bytes = b"") -> bytes:
    """The job as bytes for the judge. Raises UserError for a test that is not Python."""
    if job.together:
        sources = [parsed(source, "a test", job.entry_point) for source in (job.setup, *job.tests)]
        setup, *tests = (code(source, "<test>") for source in sources)
        names, guards = tuple[str, ...](), False
    else:
        setup, *tests = job.suite.setup, *job.suite.tests
        names, guards = job.suite.names, job.suite.guards
    content = {"program": job.program, "unittest": job.unittest, "together": job.together, "functions": names}
    return marshal.dumps({**content, "setup": setup, "tests": tests, "guards": guards, "nonce": nonce})


def count_tests(job: Job) -> int:
    """Number of tests, or of test methods in the tests' classes. Raises UserError for a test that is not Python."""
    if not job.unittest:
        return len(job.tests)
    trees = [parsed(source, f"test {number}", job.entry_point) for number, source in enumerate(job.tests)]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    names = [{n.name for n in node.body if isinstance(n, FUNCTIONS)} for node in classes]
    return sum(name.startswith("test") for defined in names for name in defined)


class Sandbox:
    """Runs jobs, `workers` at a time. No process or file outlives its job, so a verdict depends on its job alone.

    rung: the kind of confinement, a name from `available_rungs()` (None: the strongest available).
    limits: for each job. workers: jobs at a time (None: the cores of this process, divided by the ranks that torchrun
    started on this machine). The cores are divided among the workers, so that a job's processes, however many, take no
    time from another job. libraries: folders that programs and tests may import from, besides the standard library.
    unsafe: True allows the rung `limits`, which limits resources but does not confine; for root, only "root" does.
    Raises UserError if the rung is not available or not allowed.
    """

    def __init__(
        self,
        rung: str | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
        libraries: Sequence[str] = (),
        unsafe: launch.Unsafe = False,
    ) -> None:
        self.rung = launch.usable_rung(rung, unsafe)
        self.limits = limits or Limits()
        self.libraries = tuple(os.path.realpath(path) for path in libraries)
        own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.workers = workers or max(1, len(own) // ranks)
        cores = own[rank::ranks] or own
        self._free: queue.LifoQueue[Sequence[int]] = queue.LifoQueue()
        for number in range(self.workers):
            self._free.put(cores[number :: self.workers] or cores[number % len(cores) :][:1])

    def run(self, jobs: Sequence[Job]) -> list[Verdict]:
        """One verdict for each job, in order. A job that its time limit ended is tried once more, alone."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            verdicts = list(pool.map(self.judge, jobs))
        return [self.judge(j) if v.late and len(jobs) > 1 else v for j, v in zip(jobs, verdicts, strict=True)]

    def judge(self, job: Job) -> Verdict:
        """The verdict of one job, at the latest soon after the wall-time limit. Raises OSError if a process cannot
        start."""
        if needs := job.needs or _BUBBLEWRAP * (job.processes and self.rung == launch.LIMITS):
            return failed(job, f"not judged: needs {needs}", needs)
        if len(job.program) > self.limits.program_chars:
            return failed(job, f"the program is longer than {self.limits.program_chars} characters")
        cores = self._free.get()
        try:
            return self._run(job, cores)
        finally:
            self._free.put(cores)

    def _run(self, job: Job, cores: Sequence[int]) -> Verdict:
        """Start the judge and the program, or one process that is both, and read the reports."""
        begin = time.monotonic()
        nonce = secrets.token_bytes(16) if job.together else b""
        content, expected = encode_job(job, nonce), count_tests(job)
        watched: list[tuple[str, int]] = []
        with ExitStack() as stack:
            with ExitStack() as child:
                ends: list[int] = []
                for keepers in ((child, stack), (stack, child), (child, child), (child, child)):
                    ends += os.pipe()
                    for keeper, fd in zip(keepers, ends[-2:], strict=True):
                        keeper.callback(os.close, fd)
                judge_in, to_judge, report, judge_out, program_in, to_program, from_program, program_out = ends
                starts = [("together", judge_in, judge_out, list[int]())]
                if not job.together:
                    judge = ("judge", judge_in, judge_out, [from_program, to_program])
                    starts = [("program", program_in, program_out, []), judge]
                for role, stdin, stdout, others in starts:
                    streams = {"stdin": stdin, "stdout": stdout, "stderr": subprocess.DEVNULL}
                    started = launch.start(self.rung, role, self.limits, self.libraries, others, cores, **streams)
                    process, scratch = stack.enter_context(started)
                    watched += [(scratch, process.pid)]
            with contextlib.suppress(BrokenPipeError):  # the process has died, which _messages notices
                values.send(to_judge, content)
            messages = list(_messages(report, begin + self.limits.seconds, nonce, watched, self.limits))
        return _verdict(messages, expected, self.limits, begin)


def _messages(
    fd: int, deadline: float, nonce: bytes, watched: list[tuple[str, int]], limits: Limits
) -> Iterator[tuple[str, str]]:
    """Letter and text of the reports (judge.serve), until the last, the judge's end (""), the deadline ("late"), a full
    folder of those watched ("full"), too much memory ("memory"), or a report without the nonce of a job that runs in
    one process ("forged")."""
    poll, data, look = select.poll(), b"", time.monotonic() + _INTERVAL
    poll.register(fd, select.POLLIN)
    while (now := time.monotonic()) < deadline:
        if now >= look:
            if any(folder and launch.is_full(folder, limits, process) for folder, process in watched):
                yield "full", ""
                return
            if any(launch.memory_of(process, limits.memory) > limits.memory for _, process in watched):
                yield "memory", ""
                return
            look = time.monotonic() + _INTERVAL
        if not poll.poll(1000 * (min(deadline, look) - now)):
            continue
        piece = os.read(fd, 2**16)
        data += piece
        if not piece or len(data) > _MAX_REPORT:
            return
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
            message, data = data[4:end], data[end:]
            text = message.removeprefix(nonce).decode("utf-8", "replace")
            if not message.startswith(nonce) or text[:1] not in set("+-?uxd"):
                yield "forged", ""
                return
            yield text[:1], text[1:]
            if text[0] in "uxd":
                return
    yield "late", ""


def _verdict(messages: list[tuple[str, str]], expected: int, limits: Limits, begin: float) -> Verdict:
    """The verdict from the messages. expected: how many tests must report."""
    tests = [(kind == "+", text) for kind, text in messages if kind in {"+", "-", "?"}]
    undecided = tuple(number for number, (kind, _) in enumerate(messages) if kind == "?")
    unjudged = messages[undecided[0]][1] if undecided else ""
    passes = [passed for passed, _ in tests] + [False] * (expected - len(tests))
    reasons = [f"test {number}: {text}" for number, (passed, text) in enumerate(tests) if not passed]
    last, text = messages[-1] if messages else ("", "")
    if last == "x":  # the whole job fails, also the tests before
        return Verdict(False, text, time.monotonic() - begin, (False,) * expected)
    if last == "d" and not passes:
        reasons.append("the tests define no test method that runs")
    elif last == "d" and len(tests) < expected:
        reasons.append(f"{expected - len(tests)} of {expected} tests did not run")
    elif last in {"u", "forged"}:
        reasons = [text or "the program wrote a report of its own"]
    elif last != "d":
        ends = {"late": f"not done after {limits.seconds:g} s", "full": "the program uses more disk than it may"}
        ends["memory"] = "the program and its children use more memory than they may"
        reasons.append(ends.get(last, "the judging process died"))
    needs = f"plain data instead of objects, or together=True: {unjudged}" if unjudged else ""
    seconds = time.monotonic() - begin
    return Verdict(not reasons, "".join(reasons[:1]), seconds, tuple(passes), needs, last == "late", undecided)
