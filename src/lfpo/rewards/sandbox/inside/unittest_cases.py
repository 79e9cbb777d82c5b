"""Runs the test methods of unittest classes, with one outcome for each."""

from __future__ import annotations

import types
import unittest

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run(module: types.ModuleType, report: Callable[[str], None]) -> None:
    """Run the test methods of the module's classes, and report for each, when it stops, why it failed, or ""."""
    unittest.defaultTestLoader.loadTestsFromModule(module).run(_Result(report))


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
