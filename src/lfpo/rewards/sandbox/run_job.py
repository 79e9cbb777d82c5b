"""`Sandbox` runs jobs, each in two new confined processes, the program's and the judge's, connected by pipes.

A job with `together` has one process. All processes are killed when the verdict is known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox import launch
from lfpo.rewards.sandbox.inside import wire
from lfpo.rewards.sandbox.job import Job, Limits, Verdict, count_tests, encode_job, encode_suite, failed
from lfpo.rewards.sandbox.rungs import Unsafe, require_rung, strongest_rung
from lfpo.rewards.scoring import RewardFailed

_SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
_WAITS = (0.1, 0.3, 1.0, 3.0)  # seconds
_MAX_REPORT = 16 * 2**20
_NAMESPACES = "the rung bubblewrap or namespaces, because correct programs start processes or change metadata of files"


class Sandbox:
    """Runs jobs, `workers` at a time. No process or file outlives its job, so a verdict depends on its job alone.

    rung: the kind of confinement, a name from `available_rungs()` (None: the strongest available).
    limits: for each job. workers: jobs at a time (None: the cores of this process, divided by the ranks that torchrun
    started on this machine). libraries: folders that programs and tests may import from, besides the standard library.
    unsafe: True allows the rung `limits`, which limits resources but does not confine; for root, only "root" does.
    Raises UserError if the rung is not available or not allowed, or if workers is below 1.
    """

    def __init__(
        self,
        rung: str | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
        libraries: Sequence[str] = (),
        unsafe: Unsafe = False,
    ) -> None:
        if workers is not None and workers < 1:
            raise UserError(f"a sandbox needs at least one worker, not {workers}")
        self.rung = require_rung(rung, unsafe) if rung else strongest_rung(unsafe)
        self.limits = limits or Limits()
        self.workers = workers or _cores()
        self.libraries = tuple(os.path.abspath(path) for path in libraries)

    def run(self, jobs: Sequence[Job]) -> list[Verdict]:
        """One verdict for each job, in order."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            return list(pool.map(self.judge, jobs))

    def judge(self, job: Job) -> Verdict:
        """The verdict of one job. Where the machine has no process or file descriptor left, it is tried again, since
        other jobs end. Raises RewardFailed if there still is none; the program is not to blame."""
        waits = iter(_WAITS)
        while True:
            try:
                return run_job(job, self.rung, self.limits, self.libraries)
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                if (wait := next(waits, None)) is None:
                    raise RewardFailed(f"no process can be started to judge a program ({error.strerror})") from error
                time.sleep(wait)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def run_job(job: Job, rung: str, limits: Limits, libraries: tuple[str, ...]) -> Verdict:
    """The verdict of a job, at the latest soon after its wall-time limit. Raises OSError if a process cannot start."""
    begin = time.monotonic()
    if needs := job.needs or _NAMESPACES * (job.processes and rung == launch.LIMITS):
        return failed(job, f"not judged: needs {needs}", needs)
    nonce = secrets.token_bytes(16) if job.together else b""
    content = encode_suite(job, nonce) if job.together else encode_job(job)
    expected = count_tests(job)
    if len(job.program) > limits.program_chars:
        return failed(job, f"the program is longer than {limits.program_chars} characters")
    deadline = begin + limits.seconds
    with ExitStack() as stack:
        report = _start(stack, rung, limits, libraries, content, job.together)
        messages = list(_messages(report, deadline, nonce))
    return _verdict(messages, expected, limits, begin)


def _start(
    stack: ExitStack, rung: str, limits: Limits, libraries: tuple[str, ...], content: bytes, together: bool
) -> int:
    """Start the judge and the program, or one process that is both, and send the job. Returns the file descriptor of
    the reports. Closing the stack kills the processes and closes the descriptors."""
    (judge_in, to_judge), (report, judge_out) = os.pipe(), os.pipe()
    stack.callback(os.close, to_judge)
    stack.callback(os.close, report)
    theirs = [judge_in, judge_out]
    roles: list[tuple[str, int, int, tuple[int, ...]]] = [("together", judge_in, judge_out, ())]
    if not together:
        (program_in, to_program), (from_program, program_out) = os.pipe(), os.pipe()
        theirs += [program_in, to_program, from_program, program_out]
        roles = [("program", program_in, program_out, ()), ("judge", judge_in, judge_out, (from_program, to_program))]
    try:
        for role, stdin, stdout, others in roles:
            scratch = stack.enter_context(launch.scratch_folder()) if rung == launch.LIMITS else ""
            process = launch.start(rung, role, limits, libraries, scratch, stdin, stdout, others)
            stack.callback(launch.stop, process, rung)
    finally:
        for fd in theirs:
            os.close(fd)
    with contextlib.suppress(BrokenPipeError):  # the process has died, which _messages notices
        wire.send(to_judge, content)
    return report


def _messages(fd: int, deadline: float, nonce: bytes) -> Iterator[tuple[Any, ...]]:
    """The messages that the judge sends, until it is done, it ends, or the deadline passes.

    With a nonce they come from a process that also runs the program: the first message that does not start with the
    nonce is forged and ends them.
    """
    poll, data = select.poll(), b""
    poll.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1000):
        piece = os.read(fd, 2**16)
        data += piece
        if not piece or len(data) > _MAX_REPORT:
            return
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
            if not data.startswith(nonce, 4):
                yield ("forged",)
                return
            message = _message(data[4 + len(nonce) : end])
            data = data[end:]
            yield message
            if message[0] in {"forged", "done", "unloadable"}:
                return
    yield ("late",)


def _message(data: bytes) -> tuple[Any, ...]:
    """A report. A program that shares its process with the tests could send anything."""
    try:
        message = wire.decode(data, extensions=False)
    except wire.BadBytes:
        message = None
    forms = {"test": (str, bool, str), "count": (str, int), "unloadable": (str, str), "done": (str,)}
    is_message = type(message) is tuple and message and type(message[0]) is str
    return message if is_message and tuple(map(type, message)) == forms.get(message[0]) else ("forged",)


def _verdict(messages: list[tuple[Any, ...]], expected: int, limits: Limits, begin: float) -> Verdict:
    """The verdict from the messages. expected: how many tests must report."""
    tests = [(passed, reason) for kind, *rest in messages if kind == "test" for passed, reason in [rest]]
    counts = [rest[0] for kind, *rest in messages if kind == "count"]
    last = messages[-1] if messages else ("",)
    expected = counts[0] if counts else expected
    passes = tuple(passed for passed, _ in tests) + (False,) * (expected - len(tests))
    reasons = [f"test {number}: {reason}" for number, (passed, reason) in enumerate(tests) if not passed]
    if last[0] == "unloadable":
        reasons = [last[1]]
    elif last[0] == "late":
        reasons.append(f"not done after {limits.seconds:g} s")
    elif last[0] == "forged":
        reasons = ["the program wrote a report of its own"]
    elif last[0] != "done":
        reasons.append("the judging process died")
    elif not passes:
        reasons.append("the tests define no test method")
    elif len(tests) < expected:
        reasons.append(f"{expected - len(tests)} of {expected} tests did not run")
    return Verdict(not reasons, reasons[0] if reasons else "", time.monotonic() - begin, passes)
