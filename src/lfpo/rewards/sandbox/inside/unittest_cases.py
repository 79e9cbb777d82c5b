"""Runs the test methods of unittest classes, with one outcome for each."""

from __future__ import annotations

import types
import unittest

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def find_cases(module: types.ModuleType) -> list[unittest.TestCase]:
    """The test methods of the module's classes."""
    return list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))


def _flat(suite: Any) -> Iterator[Any]:
    for part in suite:
        yield from _flat(part) if isinstance(part, unittest.TestSuite) else (part,)


def outcome(case: unittest.TestCase) -> str:
    """Why a case failed, "skipped", or "". Its class fixtures run too."""
    found = ["it did not run"]
    run([case], found.append)
    return found[-1]


def run(cases: list[unittest.TestCase], report: Callable[[str], None]) -> None:
    """Run cases, and report the outcome of each when it stops."""
    unittest.TestSuite(cases).run(_Result(report))


class _Result(unittest.TestResult):
    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self.report, self.problem = report, ""

    def startTest(self, test: unittest.TestCase) -> None:
        self.problem = ""
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        self.report(self.problem)
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
