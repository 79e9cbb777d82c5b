"""The judge process. It holds tests and expected values, and gets only plain data from the program's process."""

from __future__ import annotations

import marshal
import os
import sys
import types

from . import values

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TOGETHER = "__test__"
"""Name of the module that holds program and tests, as in BigCodeBench's own runner."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Judge one job, marshalled by the host (job.encode_job), and report each test as it ends, so that a later hang
    does not lose earlier passes.

    A report is a letter and a text: + passed, - failed, u the program does not load, d done. With `together` the
    program runs in this process, and a nonce is before each report, so that output by accident is not one; nothing
    defends such a verdict from a program that cheats.
    """
    data = values.receive(inbox)
    os.close(inbox)
    if data is None:
        return
    job = marshal.loads(data)

    def report(letter: str, text: str = "") -> None:
        values.send(outbox, job["nonce"] + f"{letter}{text[:500]}".encode("utf-8", "replace"))

    sys.set_int_max_str_digits(0)  # the program's own setting does not reach this process
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 if job["together"] else 20_000))  # for nested values
    if job["together"]:
        _judge_together(job, report)
    else:
        _judge(job, report, settings["others"])


def describe(error: BaseException) -> str:
    """Type and message of the error."""
    return str(error) if isinstance(error, values.Abandoned) else f"{type(error).__name__}: {error}".rstrip(": ")


def _execute(code: bytes, module: types.ModuleType) -> str:
    """Run marshalled code of the suite. Why it failed, or ""."""
    try:
        exec(marshal.loads(code), vars(module))
    except BaseException as error:  # a failed assertion, or what the program raised
        return describe(error) or "failed"
    return ""


def _judge_together(job: dict[str, Any], report: Callable[..., None]) -> None:
    sys.modules[TOGETHER] = module = types.ModuleType(TOGETHER)
    vars(module).update(sys=sys, os=os, environ=os.environ)  # as in BigCodeBench's own runner
    problem = _execute(job["setup"], module)
    try:
        exec(compile(job["program"], "<program>", "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # also SystemExit
        return report("u", f"the program does not load: {describe(error)}")
    if problem := problem and _execute(job["setup"], module):  # it may use the program's classes
        return report("u", f"the setup does not load: {problem}")
    for code in job["tests"]:
        problem = _execute(code, module)
        if problem or not job["unittest"]:
            report("-" if problem else "+", problem)
    if job["unittest"] and not problem:
        _run_cases(module, report)
    return report("d")


def _run_cases(module: types.ModuleType, report: Callable[..., None]) -> None:
    """Run the test methods of the module's classes, and report each when it stops."""
    import unittest  # this takes longer than most jobs

    class Result(unittest.TestResult):
        problem = ""

        def startTest(self, test: unittest.TestCase) -> None:
            self.problem = ""
            super().startTest(test)

        def stopTest(self, test: unittest.TestCase) -> None:
            report("-" if self.problem else "+", self.problem)
            super().stopTest(test)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self.addFailure(test, err)

        def addFailure(self, test: Any, err: Any) -> None:
            self.problem = self.problem or f"{test.id()}: {err[0].__name__}: {err[1]}"

        addError = addFailure

        def addSkip(self, test: Any, reason: str) -> None:
            self.problem = self.problem or "skipped"

        def addUnexpectedSuccess(self, test: Any) -> None:
            self.problem = f"{test.id()}: passed against expectation"

    unittest.defaultTestLoader.loadTestsFromModule(module).run(Result())


def _judge(job: dict[str, Any], report: Callable[..., None], pipes: list[int]) -> None:
    from . import strict
    from .link import Link

    link = Link(pipes, judges=True)
    sys.modules["tests"] = module = types.ModuleType("tests")
    strict.install(vars(module), link.fail)
    try:
        link.ask("load", job["program"])
    except BaseException as error:  # whatever the program raised
        return report("u", f"the program does not load: {describe(error)}")
    problem = _execute(job["setup"], module)  # which may define the prompt's stub
    try:
        for name in job["functions"]:
            vars(module)[name] = link.ask("define", name)
    except BaseException as error:  # the program does not define the name
        problem = problem or describe(error)
    for code in job["tests"]:
        link.failed = ""
        found = problem or _execute(code, module)
        found = link.gone or link.failed or found
        report("-" if found else "+", found)
    return report("d")
