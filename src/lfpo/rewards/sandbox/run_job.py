"""`Sandbox` runs jobs, each in two new confined processes, the program's and the judge's, connected by pipes.

A job with `together` has one process. All processes are killed when the verdict is known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import secrets
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from lfpo.base.errors import UserError
from lfpo.rewards.sandbox import launch
from lfpo.rewards.sandbox.inside import values
from lfpo.rewards.sandbox.job import Job, Limits, Verdict, count_tests, encode_job, failed
from lfpo.rewards.sandbox.rungs import Unsafe, usable_rung
from lfpo.rewards.scoring import RewardFailed

_SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
_WAITS = (0.1, 0.3, 1.0, 3.0)  # seconds
_MAX_REPORT = 16 * 2**20
_INTERVAL = 0.1
"""Seconds between two looks at the disk on the rung `limits`."""
_NAMESPACES = "the rung bubblewrap or namespaces, because correct programs start processes or change metadata of files"


class Sandbox:
    """Runs jobs, `workers` at a time. No process or file outlives its job, so a verdict depends on its job alone.

    rung: the kind of confinement, a name from `available_rungs()` (None: the strongest available).
    limits: for each job. workers: jobs at a time (None: the cores of this process, divided by the ranks that torchrun
    started on this machine). The cores are divided among the workers, so that a job's processes, however many, take no
    time from another job. libraries: folders that programs and tests may import from, besides the standard library.
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
        self.rung = usable_rung(rung, unsafe)
        self.limits = limits or Limits()
        cores, ranks = _cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.workers = workers or max(1, len(cores) // ranks)
        self.libraries = tuple(os.path.abspath(path) for path in libraries)
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        mine = cores[rank::ranks] or cores
        self._free: queue.LifoQueue[Sequence[int]] = queue.LifoQueue()
        for number in range(self.workers):
            self._free.put(mine[number :: self.workers] or mine[number % len(mine) :][:1])

    def run(self, jobs: Sequence[Job]) -> list[Verdict]:
        """One verdict for each job, in order. A job that its time limit ended is tried once more, alone."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as pool:
            verdicts = list(pool.map(self.judge, jobs))
        alone = len(jobs) == 1
        return [self.judge(j) if v.late and not alone else v for j, v in zip(jobs, verdicts, strict=True)]

    def judge(self, job: Job) -> Verdict:
        """The verdict of one job. Where the machine has no process or file descriptor left, it is tried again, since
        other jobs end. Raises RewardFailed if there still is none; the program is not to blame."""
        waits = iter(_WAITS)
        cores = self._free.get()
        try:
            while True:
                try:
                    return self._run(job, cores)
                except OSError as error:
                    if error.errno not in _SCARCE:
                        raise
                    if (wait := next(waits, None)) is None:
                        raise RewardFailed(
                            f"no process can be started to judge a program ({error.strerror})"
                        ) from error
                    time.sleep(wait)
        finally:
            self._free.put(cores)

    def _run(self, job: Job, cores: Sequence[int]) -> Verdict:
        """The verdict, at the latest soon after the wall-time limit. Raises OSError if a process cannot start."""
        begin = time.monotonic()
        if needs := job.needs or _NAMESPACES * (job.processes and self.rung == launch.LIMITS):
            return failed(job, f"not judged: needs {needs}", needs)
        nonce = secrets.token_bytes(16) if job.together else b""
        content, expected = encode_job(job, nonce), count_tests(job)
        if len(job.program) > self.limits.program_chars:
            return failed(job, f"the program is longer than {self.limits.program_chars} characters")
        with ExitStack() as stack:
            report, folders = self._start(stack, content, job.together, cores)
            messages = list(_messages(report, begin + self.limits.seconds, nonce, folders, self.limits))
        return _verdict(messages, expected, self.limits, begin)

    def _start(
        self, stack: ExitStack, content: bytes, together: bool, cores: Sequence[int]
    ) -> tuple[int, dict[str, int]]:
        """Start the judge and the program, or one process that is both, and send the job.

        Returns the file descriptor of the reports, and for each scratch folder the process that may write there.
        Closing the stack kills the processes and closes the descriptors.
        """
        (judge_in, to_judge), (report, judge_out) = os.pipe(), os.pipe()
        stack.callback(os.close, to_judge)
        stack.callback(os.close, report)
        theirs = [judge_in, judge_out]
        roles: list[tuple[str, int, int, tuple[int, ...]]] = [("together", judge_in, judge_out, ())]
        if not together:
            (program_in, to_program), (from_program, program_out) = os.pipe(), os.pipe()
            theirs += [program_in, to_program, from_program, program_out]
            ends = (from_program, to_program)
            roles = [("program", program_in, program_out, ()), ("judge", judge_in, judge_out, ends)]
        folders: dict[str, int] = {}
        try:
            for role, stdin, stdout, others in roles:
                scratch = stack.enter_context(launch.scratch_folder()) if self.rung == launch.LIMITS else ""
                streams = {"stdin": stdin, "stdout": stdout, "stderr": subprocess.DEVNULL}
                arguments = (self.rung, role, self.limits, self.libraries, scratch, others, cores)
                process = launch.start(*arguments, **streams)
                stack.callback(launch.stop, process)
                if scratch:
                    folders[scratch] = process.pid
        finally:
            for fd in theirs:
                os.close(fd)
        with contextlib.suppress(BrokenPipeError):  # the process has died, which _messages notices
            values.send(to_judge, content)
        return report, folders


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _messages(
    fd: int, deadline: float, nonce: bytes, folders: dict[str, int], limits: Limits
) -> Iterator[tuple[str, str]]:
    """Letter and text of the reports (judge.serve), until the last, the judge's end (""), the deadline ("late"), or
    until one of the folders is full ("full").

    With a nonce they come from a process that also runs the program: one without it ends them ("forged").
    """
    poll, data, look = select.poll(), b"", time.monotonic() + (_INTERVAL if folders else 1e9)
    poll.register(fd, select.POLLIN)
    while (now := time.monotonic()) < deadline:
        if now >= look:
            if any(launch.is_full(folder, limits, process) for folder, process in folders.items()):
                yield "full", ""
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
            if not message.startswith(nonce) or text[:1] not in set("+-ud"):
                yield "forged", ""
                return
            yield text[:1], text[1:]
            if text[0] in "ud":
                return
    yield "late", ""


def _verdict(messages: list[tuple[str, str]], expected: int, limits: Limits, begin: float) -> Verdict:
    """The verdict from the messages. expected: how many tests must report."""
    tests = [(kind == "+", text) for kind, text in messages if kind in {"+", "-"}]
    passes = [passed for passed, _ in tests] + [False] * (expected - len(tests))
    reasons = [f"test {number}: {text}" for number, (passed, text) in enumerate(tests) if not passed]
    last, text = messages[-1] if messages else ("", "")
    if last == "u":
        reasons = [text]
    elif last == "late":
        reasons.append(f"not done after {limits.seconds:g} s")
    elif last == "full":
        reasons.append("the program uses more disk than it may")
    elif last == "forged":
        reasons = ["the program wrote a report of its own"]
    elif last != "d":
        reasons.append("the judging process died")
    elif not passes:
        reasons.append("the tests define no test method that runs")
    elif len(tests) < expected:
        reasons.append(f"{expected - len(tests)} of {expected} tests did not run")
    reason = reasons[0] if reasons else ""
    return Verdict(not reasons, reason, time.monotonic() - begin, tuple(passes), late=last == "late")
