"""Runs program and tests in one module of one process, for suites that use the program's objects.

The program can access everything in this process. Two checks stop the usual tricks: every report carries a nonce that
is only in this process's memory, and unittest is compared with its state before the program was loaded.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import unittest

from . import wire
from .unittest_cases import find_cases, run_cases

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME = "__test__"
"""The module's name, as in BigCodeBench's own runner."""
OWN = {"__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
OWN |= {"maxDiff", "longMessage"}
"""Attributes that a test class or test case may have without affecting the verdict."""
_CHANGED = "the program changed unittest"


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Run one job and report each test method as it ends. Exits the process."""
    data = wire.receive(inbox)
    os.close(inbox)
    if data is None:
        return
    job = wire.decode(data)
    report = _reporter(outbox, job.pop("nonce"))
    untouched = _guard_unittest(mocks=any("mock" in source for source in job["tests"]))
    cases, error = _load(job)
    if error or not untouched():
        report("unloadable", error if untouched() else _CHANGED)
        os._exit(0)
    unshadowed = _guard_cases(cases)
    run_cases(
        cases,
        lambda passed, reason: report("test", passed, reason),
        lambda case: "" if untouched() and unshadowed(case) else _CHANGED,
    )
    report("done")
    os._exit(0)


def _reporter(outbox: int, nonce: bytes) -> Callable[..., None]:
    """A function that sends a message after the nonce."""
    send, encode = wire.send, wire.encode  # bound now, before the program can replace them

    def report(*message: Any) -> None:
        send(outbox, nonce + encode(message))

    return report


def _load(job: dict[str, Any]) -> tuple[list[unittest.TestCase], str]:
    """The test methods, or a case for each test that is not a class; or the reason why they could not be loaded."""
    module = types.ModuleType(NAME)
    module.__dict__.update(sys=sys, os=os, environ=os.environ)  # as in BigCodeBench's own runner
    sys.modules[NAME] = module
    suite = "\n\n".join(job["tests"]) if job["unittest"] else ""
    for what, source in (("setup", job["setup"]), ("program", job["program"]), ("test", suite)):
        try:
            exec(compile(source, f"<{what}>", "exec", dont_inherit=True), module.__dict__)
        except BaseException as error:  # also SystemExit
            return [], f"the {what} does not load: {type(error).__name__}: {error}"[:500]
    if job["unittest"]:
        return find_cases(module), ""
    codes = [
        compile(source, f"<test {number}>", "exec", dont_inherit=True) for number, source in enumerate(job["tests"])
    ]
    return [unittest.FunctionTestCase(functools.partial(exec, code, module.__dict__)) for code in codes], ""


def _guard_cases(cases: list[unittest.TestCase]) -> Callable[[unittest.TestCase], bool]:
    """A function that tells whether a test's methods are those of its class's source."""
    methods = {kind: _functions(kind) for kind in map(type, cases)}
    # Without the names that start with _class, which unittest itself sets.
    inherited = {name for name in dir(unittest.TestCase) if not name.startswith("_class")} - OWN

    def unshadowed(case: unittest.TestCase) -> bool:
        known, now = methods[type(case)], vars(type(case))
        changed = any(now.get(name) is not value for name, value in known.items())
        return not changed and not inherited & (vars(case).keys() | (now.keys() - known.keys()))

    return unshadowed


def _functions(kind: type) -> dict[str, Any]:
    kinds = (classmethod, staticmethod)
    return {name: value for name, value in vars(kind).items() if callable(value) or isinstance(value, kinds)}


def _guard_unittest(mocks: bool) -> Callable[[], bool]:
    """A function that tells whether the classes and functions of unittest are unchanged since this call.

    mocks: whether to include unittest.mock.
    """
    places: list[Any] = [unittest.TestCase, unittest.TestResult, unittest.TestSuite]
    places += [unittest.case, unittest.suite, unittest.result]
    if mocks:
        from unittest import mock

        places += [mock.NonCallableMock, mock.CallableMixin]
    before = [dict(vars(place)) for place in places]
    codes = [value.__code__ for state in before for value in state.values() if hasattr(value, "__code__")]

    def untouched() -> bool:
        now = [value.__code__ for state in before for value in state.values() if hasattr(value, "__code__")]
        same = all(
            vars(place).get(n) is v for place, state in zip(places, before, strict=True) for n, v in state.items()
        )
        return same and len(now) == len(codes) and all(a is b for a, b in zip(now, codes, strict=True))

    return untouched
