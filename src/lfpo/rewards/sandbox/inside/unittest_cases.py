"""Runs the test methods of unittest classes, with one report for each."""

from __future__ import annotations

import types
import unittest

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Report = Callable[[bool, str], None]


def find_cases(module: types.ModuleType) -> list[unittest.TestCase]:
    """The test methods of the module's classes."""
    return list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))


def _flat(suite: Any) -> Any:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _flat(part)
        else:
            yield part


def run_cases(
    cases: list[unittest.TestCase], report: Report, problem_of: Callable[[Any], str] = lambda test: ""
) -> None:
    """Run all cases as one suite, so that class fixtures run once, and report (passed, reason) when each stops.

    A skipped test does not pass. One whose class fixture fails is not reported. problem_of: another reason to fail.
    """
    unittest.TestSuite(cases).run(_Result(report, problem_of))


class _Result(unittest.TestResult):
    def __init__(self, report: Report, problem_of: Callable[[Any], str]) -> None:
        super().__init__()
        self.problem, self.report, self.problem_of = "", report, problem_of

    def startTest(self, test: unittest.TestCase) -> None:
        self.problem = ""
        super().startTest(test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addFailure(subtest, err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.problem = self.problem or f"{test.id()}: {err[0].__name__}: {err[1]}"

    addError = addFailure

    def addSkip(self, test: Any, reason: str) -> None:
        self.problem = f"{test.id()}: skipped: {reason}"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.problem = f"{test.id()}: passed against expectation"

    def stopTest(self, test: unittest.TestCase) -> None:
        if found := self.problem_of(test):
            self.problem = f"{test.id()}: {found}"
        self.report(not self.problem, self.problem[:500])
        super().stopTest(test)
