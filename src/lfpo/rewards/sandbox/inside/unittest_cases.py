"""Runs the test methods of unittest classes, with one outcome for each."""

from __future__ import annotations

import types
import unittest

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any


def find_cases(module: types.ModuleType) -> list[unittest.TestCase]:
    """The test methods of the module's classes."""
    return list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))


def _flat(suite: Any) -> Any:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _flat(part)
        else:
            yield part


def outcome(case: unittest.TestCase) -> str:
    """Why a case failed, "skipped", or "". Its class fixtures run too."""
    result = Result()
    unittest.TestSuite([case]).run(result)
    return result.problems.get(case.id(), "it did not run")


class Result(unittest.TestResult):
    """The outcome of each case, by its id. report: called with the outcome when a case stops."""

    def __init__(self, report: Any = None) -> None:
        super().__init__()
        self.problems: dict[str, str] = {}
        self.report = report

    def startTest(self, test: unittest.TestCase) -> None:
        self.problems[test.id()] = ""
        super().startTest(test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.problems[test.id()] = self.problems.get(test.id()) or f"{test.id()}: {err[0].__name__}: {err[1]}"

    addError = addFailure

    def addSkip(self, test: Any, reason: str) -> None:
        self.problems[test.id()] = self.problems.get(test.id()) or "skipped"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.problems[test.id()] = f"{test.id()}: passed against expectation"

    def stopTest(self, test: unittest.TestCase) -> None:
        if self.report:
            self.report(self.problems[test.id()])
        super().stopTest(test)
