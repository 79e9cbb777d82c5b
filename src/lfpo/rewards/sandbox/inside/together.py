"""Program and unittest classes in one module of one process, for suites that need each other's objects.

The program can reach everything here while it runs. What it cannot do without a search: report, since every report
carries a nonce that only this process's memory holds, or change what unittest does, since that is compared with how
it was before the program was loaded.
"""

from __future__ import annotations

import os

from . import wire

TYPE_CHECKING = False  # typing itself would double the time to start
if TYPE_CHECKING:
    import unittest
    from collections.abc import Callable
    from typing import Any

    Report = Callable[..., None]

NAME = "__test__"
"""The module's name, as BigCodeBench's own runner has it."""
OWN = {"__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
OWN |= {"maxDiff", "longMessage"}
"""What a class or a case has of its own without changing what unittest decides."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Run one job and report each test method as it ends."""
    data = wire.receive(inbox)
    os.close(inbox)
    if data is None:
        return
    job = wire.decode(data)
    report = _reporter(outbox, job.pop("nonce"))
    untouched = _guard_unittest(mocks="mock" in job["tests"])
    cases, error = _load(job)
    if not untouched():
        error = "the program changed unittest"
    if error:
        report("unloadable", error)
        os._exit(0)
    _run(cases, report, untouched)
    report("done")
    os._exit(0)


def _reporter(outbox: int, nonce: bytes) -> Report:
    send, encode = wire.send, wire.encode  # as they are now

    def report(*message: Any) -> None:
        send(outbox, nonce + encode(message))

    return report


def _load(job: dict[str, Any]) -> tuple[list[unittest.TestCase], str]:
    """The test methods, or why there are none."""
    import sys
    import types
    import unittest

    module = types.ModuleType(NAME)
    module.__dict__.update(sys=sys, os=os, environ=os.environ)  # as BigCodeBench's own runner has it
    sys.modules[NAME] = module
    for what in ("setup", "program", "tests"):
        try:
            exec(compile(job[what], f"<{what}>", "exec"), module.__dict__)
        except BaseException as error:  # the program's SystemExit too
            return [], f"the {what.removesuffix('s')} does not load: {type(error).__name__}: {error}"[:500]
    return list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module))), ""


def _flat(suite: Any) -> Any:
    for part in suite:
        if hasattr(part, "__iter__"):
            yield from _flat(part)
        else:
            yield part


def _run(cases: list[unittest.TestCase], report: Report, untouched: Callable[[], bool]) -> None:
    """All cases, as one suite, so that what belongs to a class is set up once. Skipped is not passed."""
    import unittest

    methods = {kind: _functions(kind) for kind in map(type, cases)}
    inherited = {name for name in dir(unittest.TestCase) if not name.startswith("_class")} - OWN  # unittest sets those

    class Result(unittest.TestResult):
        problem = ""

        def startTest(self, test: unittest.TestCase) -> None:
            self.problem = ""
            super().startTest(test)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self._failed(subtest, err)

        def addError(self, test: Any, err: Any) -> None:
            self._failed(test, err)

        def addFailure(self, test: Any, err: Any) -> None:
            self._failed(test, err)

        def addSkip(self, test: Any, reason: str) -> None:
            self.problem = f"{test.id()}: skipped: {reason}"

        def addUnexpectedSuccess(self, test: Any) -> None:
            self.problem = f"{test.id()}: passed against expectation"

        def stopTest(self, test: unittest.TestCase) -> None:
            known, now = methods[type(test)], vars(type(test))
            changed = any(now.get(name) is not value for name, value in known.items())
            shadowed = inherited & (vars(test).keys() | (now.keys() - known.keys()))
            if changed or shadowed or not untouched():
                self.problem = f"{test.id()}: the program changed unittest"
            report("test", not self.problem, self.problem[:500])
            super().stopTest(test)

        def _failed(self, test: Any, err: Any) -> None:
            self.problem = self.problem or f"{test.id()}: {err[0].__name__}: {err[1]}"

    unittest.TestSuite(cases).run(Result())


def _functions(kind: type) -> dict[str, Any]:
    kinds = (classmethod, staticmethod)
    return {name: value for name, value in vars(kind).items() if callable(value) or isinstance(value, kinds)}


def _guard_unittest(mocks: bool) -> Callable[[], bool]:
    """A function that says whether unittest's classes and functions are still what they are now."""
    import unittest

    places: list[Any] = [unittest.TestCase, unittest.TestResult, unittest.TestSuite]
    places += [unittest.case, unittest.suite, unittest.result]
    if mocks:
        import unittest.mock

        places += [unittest.mock.NonCallableMock, unittest.mock.CallableMixin]
    before = [dict(vars(place)) for place in places]
    codes = [value.__code__ for state in before for value in state.values() if hasattr(value, "__code__")]

    def untouched() -> bool:
        now = [value.__code__ for state in before for value in state.values() if hasattr(value, "__code__")]
        same = all(
            vars(place).get(n) is v for place, state in zip(places, before, strict=True) for n, v in state.items()
        )
        return same and len(now) == len(codes) and all(a is b for a, b in zip(now, codes, strict=True))

    return untouched
