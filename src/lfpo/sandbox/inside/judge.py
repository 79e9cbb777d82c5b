"""The judge process. It holds tests and expected values, and gets only plain data from the program's process.

The host rewrites operators and numpy's comparisons in a suite's source to calls of `__operate__` and `__comparison__`
(suite.py): emptiness equals nothing but emptiness, and the program's value is not broadcast.
"""

from __future__ import annotations

import _operator as operator  # `operator` takes longer to import
import marshal
import os
import sys
import types

from . import values

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Marshalled = dict[str, Any]  # a job, or settings

TOGETHER = "__test__"
"""Name of the module that holds program and tests, as in BigCodeBench's own runner."""
_PLAIN = {int, float, str, bool, list, dict, tuple, set, type(None)}
_RUNS = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"}
_ARRAYS = {"numpy", "pandas", "_pytest", "scipy"}


def serve(inbox: int, outbox: int, settings: Marshalled) -> None:
    """Judge one job, marshalled by the host (run_job.encode_job), and report each test as it ends, so that a later hang
    does not lose earlier passes.

    A report is a letter and a text: + passed, - failed, ? not judged, u the program does not load, x the program forged
    an answer, d done. With
    `together` a nonce is
    before each report, so that output by accident is not one; nothing defends such a verdict from a cheat.
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


def _execute(code: types.CodeType, module: types.ModuleType) -> str:
    """Run code of the suite. Why it failed, or ""."""
    error = _error_of(code, module)
    return "" if error is None else describe(error) or "failed"


def _error_of(code: types.CodeType, module: types.ModuleType) -> BaseException | None:
    """Run code of the suite. The failed assertion, or whatever else ended it."""
    try:
        exec(code, vars(module))
    except BaseException as error:
        return error
    return None


def _judge_together(job: Marshalled, report: Callable[..., None]) -> None:
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

        def stopTest(self, test: unittest.TestCase) -> None:
            report("-" if self.problem else "+", self.problem)

        def addSubTest(self, test: unittest.TestCase, subtest: object, err: object) -> None:
            if err is not None:
                self.addFailure(test, err)

        def addFailure(self, test: unittest.TestCase, err: Any) -> None:
            self.problem = self.problem or f"{test.id()}: {err[0].__name__}: {err[1]}"

        addError = addFailure

        def addSkip(self, test: object, reason: str) -> None:
            self.problem = self.problem or "skipped"

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            self.problem = f"{test.id()}: passed against expectation"

    unittest.defaultTestLoader.loadTestsFromModule(module).run(Result())


def _judge(job: Marshalled, report: Callable[..., None], pipes: list[int]) -> None:
    from .link import Link

    link = Link(pipes, judges=True)
    sys.modules["tests"] = module = types.ModuleType("tests")
    vars(module).update(
        __operate__=lambda *operation: _operate(link.fail, *operation),
        __comparison__=lambda *function: _comparison(link.fail, *function),
        __type__=lambda value: _type_of(link, value),
    )
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
    sys.addaudithook(lambda event, arguments: _refuse_text(link, event, arguments))
    for code in job["tests"]:
        link.begin(lambda name, code=code: _mentions(code, name))  # type: ignore[misc]
        raised = None if problem else _error_of(code, module)
        if raised is not None:
            link.blame(raised)
        text = link.gone or link.failed or problem or ("" if raised is None else describe(raised) or "failed")
        if link.forged:
            return report("x", link.gone)
        report("?" if link.unjudged and not link.gone else "-" if text else "+", link.unjudged or text)
    return report("d")


def _mentions(code: types.CodeType, name: str) -> bool:
    """Whether code uses a name."""
    return name in code.co_names or any(_mentions(c, name) for c in code.co_consts if isinstance(c, types.CodeType))


def _is_harmless(frame: types.FrameType | None) -> bool:
    """Whether a module is being imported, or `ast.literal_eval` parses."""
    while frame:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path.startswith("<frozen importlib") or (
            name == "literal_eval" and path == getattr(sys.modules.get("ast"), "__file__", "")
        ):
            return True
        frame = frame.f_back
    return False


def _refuse_text(link: Any, event: str, arguments: Sequence[object]) -> None:
    """Leave a test without a verdict before it runs a text, unpickles, or starts a process, once the program has
    answered:
    the text may be the program's. Imports of modules, and `ast.literal_eval`, which runs nothing, are allowed."""
    if not link.answers:
        return
    if event == "compile":
        source = str(arguments[1])
    elif event == "exec":
        source = str(getattr(arguments[0], "co_filename", "<string>"))
    else:
        if event in _RUNS:
            raise link.leave(f"the test may run what the program returned ({event})")
        return
    if source.startswith("<") and not source.startswith("<frozen") and not _is_harmless(sys._getframe(2)):
        raise link.leave(f"the test may run a text that the program returned ({event})")


def _operate(fail: Callable[[str], BaseException], name: str, left: object, right: object) -> object:
    """An operator's result, unless an empty array meets something of another shape. fail: fails the test, and gives
    what to raise."""
    plain = type(left) in _PLAIN and type(right) in _PLAIN
    if not plain and any(type(side).__module__.partition(".")[0] in _ARRAYS for side in (left, right)):
        a, b = _shape(left), _shape(right)
        if a != b and 0 in (*(a or ()), *(b or ())):
            raise fail(f"an empty array meets an array of another shape: {a} and {b}")
    return getattr(operator, name)(left, right)


def _type_of(link: Any, value: object) -> object:
    """`type(value)`, which only the program knows of its own objects."""
    own = type(value).__module__.rpartition(".")[0] == __name__.rpartition(".")[0]
    if own or any(value is part for part in link.reduced):
        raise link.cannot("has as type")
    return type(value)


def _comparison(fail: Callable[[str], BaseException], compare: Callable[..., object], side: str) -> object:
    """A function of numpy that refuses operands of which the program's does not have all elements of the other.

    side: which one the program's is, "first", "second" or "" if it is not known.
    """

    def checked(*args: object, **kwargs: object) -> object:
        operands = [*args, *kwargs.values()][:2]
        if len(operands) == 2 and "numpy" in sys.modules:
            a, b = map(_shape, reversed(operands) if side == "second" else operands)
            if a is not None and b is not None and a != b and not _covers(a, b, bool(side)):
                raise fail(f"shapes differ: {a} and {b}")
        return compare(*args, **kwargs)

    return checked


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an array, a frame, a list, or what pytest.approx holds; None where it has none."""
    import numpy

    value = getattr(value, "expected", value) if type(value).__module__.startswith("_pytest") else value
    try:
        return tuple(numpy.shape(value))
    except (ValueError, TypeError):  # ragged; a class of numpy, such as int64, whose shape is that of its instances
        return None


def _covers(shape: tuple[int, ...], expected: tuple[int, ...], known: bool) -> bool:
    """Whether an array of one shape has an element for each of the other. Of unknown operands the other is a number."""
    if 0 in shape or 0 in expected or not (known or expected == ()):
        return False
    wide = (1,) * (len(shape) - len(expected)) + expected
    return len(shape) >= len(expected) and all(a == b or b == 1 for a, b in zip(shape, wide, strict=True))
