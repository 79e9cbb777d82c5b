"""Runs unittest classes in the judge's process, with one report for each test method."""

from __future__ import annotations

import types
import unittest
from collections.abc import Callable
from typing import Any


def run_cases(
    source: str, module: types.ModuleType, report: Callable[[bool, str], None], announce: Callable[[int], None]
) -> None:
    """Define the classes of the source in the module and run each test method. A skipped test does not pass.

    announce: called once with the number of tests. report: called for each with (passed, reason).
    """
    try:
        exec(compile(source, "<tests>", "exec"), module.__dict__)
    except BaseException as error:  # raised by the tests' code or by the program
        announce(1)
        report(False, f"{type(error).__name__}: {error}")
        return
    cases = list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))
    announce(len(cases))
    for case in cases:
        passed, reason = run_case(case)
        report(passed, reason)


def run_case(case: unittest.TestCase) -> tuple[bool, str]:
    """Whether the test ran and passed, and the reason if not."""
    result = unittest.TestResult()
    try:
        unittest.TestSuite([case]).run(result)
    except BaseException as error:  # unittest catches Exceptions only
        return False, f"{case.id()}: {type(error).__name__}: {error}"
    problems = result.failures + result.errors
    passed = result.testsRun == 1 and result.wasSuccessful() and not result.skipped
    return passed, "" if passed else f"{case.id()}: {problems[0][1].splitlines()[-1] if problems else 'did not run'}"


def _flat(suite: unittest.TestSuite) -> Any:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _flat(part)
        else:
            yield part
