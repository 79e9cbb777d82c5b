"""Runs one job: two confined processes, the program's and the judge's, connected by pipes.

A job with `together` has one process. All processes are killed when the verdict is known.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from lfpo.rewards.sandbox import launch
from lfpo.rewards.sandbox.inside import wire
from lfpo.rewards.sandbox.job import Job, Limits, Verdict, count_methods, encode_job, encode_suite
from lfpo.rewards.sandbox.scratch import scratch_folder

_MAX_REPORT = 16 * 2**20
_NAMESPACES = "the rung bubblewrap or namespaces, because correct programs start processes or change metadata of files"


def run_job(job: Job, rung: str, limits: Limits, libraries: tuple[str, ...]) -> Verdict:
    """The verdict of a job, at the latest soon after its wall-time limit. Raises OSError if a process cannot start."""
    begin = time.monotonic()
    if needs := job.needs or _NAMESPACES * (job.processes and rung == launch.LIMITS):
        tests = (False,) * len(job.calls or job.tests)
        return Verdict(False, f"not judged: needs {needs}", 0.0, tests, needs)
    nonce = secrets.token_bytes(16) if job.together else b""
    content = encode_suite(job, nonce) if job.together else encode_job(job)
    expected = count_methods(job) if job.together else len(job.calls or job.tests)
    if len(job.program) > limits.program_chars:
        return Verdict(False, f"the program is longer than {limits.program_chars} characters", 0.0, (False,) * expected)
    deadline = begin + limits.seconds
    with ExitStack() as stack:
        start = _start_together if job.together else _start_judge_and_program
        report = start(stack, rung, limits, libraries, content)
        messages = list(_messages(report, deadline, nonce))
    return _verdict(messages, expected, limits, begin)


def _start_judge_and_program(
    stack: ExitStack, rung: str, limits: Limits, libraries: tuple[str, ...], content: bytes
) -> int:
    """Start both processes and send the judge its job. Returns the file descriptor of its reports.

    Closing the stack kills the processes and closes the descriptors.
    """
    pipes = [os.pipe() for _ in range(4)]
    (program_in, to_program), (from_program, program_out), (judge_in, to_judge), (report, judge_out) = pipes
    stack.callback(os.close, to_judge)
    stack.callback(os.close, report)
    theirs = [program_in, to_program, from_program, program_out, judge_in, judge_out]
    try:
        for role, stdin, stdout, others in (
            ("program", program_in, program_out, ()),
            ("judge", judge_in, judge_out, (from_program, to_program)),
        ):
            scratch = stack.enter_context(scratch_folder()) if rung == launch.LIMITS else ""
            process = launch.start(rung, role, limits, libraries, scratch, stdin, stdout, others)
            stack.callback(launch.stop, process, rung)
    finally:
        for fd in theirs:
            os.close(fd)
    with contextlib.suppress(BrokenPipeError):  # the judge has died, which _messages notices
        wire.send(to_judge, content)
    return report


def _start_together(stack: ExitStack, rung: str, limits: Limits, libraries: tuple[str, ...], content: bytes) -> int:
    """The same for a job whose program and tests share one process."""
    (suite_in, to_suite), (report, suite_out) = os.pipe(), os.pipe()
    stack.callback(os.close, report)
    with open(to_suite, "wb", 0):
        try:
            scratch = stack.enter_context(scratch_folder()) if rung == launch.LIMITS else ""
            process = launch.start(rung, "together", limits, libraries, scratch, suite_in, suite_out)
            stack.callback(launch.stop, process, rung)
        finally:
            os.close(suite_in)
            os.close(suite_out)
        with contextlib.suppress(BrokenPipeError):  # it has died, which _messages notices
            wire.send(to_suite, content)
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
            if message[0] == "forged":
                return
            if message[0] in {"done", "unloadable"}:
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
