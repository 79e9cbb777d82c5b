"""The judge process. It holds tests and expected values, and gets only plain data from the program's process."""

from __future__ import annotations

import _thread
import builtins
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
_RUNS = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"}


class Abandoned(BaseException):
    """No result that tests may use. A BaseException, so that `except Exception` of a test does not catch it."""


def serve(inbox: int, outbox: int, settings: Marshalled) -> None:
    """Judge one job, marshalled by the host (run_job.encode_job), and report each test as it ends, so that a later hang
    does not lose earlier passes.

    A report is a letter and a text: + passed, - failed, ? not judged, u the program does not load, x the program forged
    an answer, d done. With `together` a nonce is before each report, so that output by accident is not one; nothing
    defends such a verdict from a cheat.
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
    return str(error) if isinstance(error, Abandoned) else f"{type(error).__name__}: {error}".rstrip(": ")


def _execute(code: types.CodeType, module: types.ModuleType) -> str:
    """Run code of the suite. Why it failed, or ""."""
    try:
        exec(code, vars(module))
    except BaseException as error:  # whatever ended it
        return describe(error) or "failed"
    return ""


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


class Program:
    """The program in the other process, which answers calls of its functions.

    gone: why it answers no more, else "". forged: whether it sent what no honest program sends. answers: how many
    answers the current test has got. failed: why the current test fails, whatever it catches, else "". unjudged: why
    nobody can say whether it passes, else "". guards: as of values.decode.
    """

    def __init__(self, pipes: Sequence[int], guards: bool) -> None:
        (self._inbox, self._outbox), self._guards = pipes, guards
        self._lock = _thread.allocate_lock()  # a test may have threads
        self.gone = ""
        self.forged = False
        self.begin()

    def begin(self) -> None:
        """A new test begins."""
        self.failed = self.unjudged = ""
        self.answers = 0

    def function(self, name: str) -> Callable[..., object]:
        """The program's function of this name, for the tests."""
        return lambda *arguments, **keywords: self.ask("call", name, arguments, keywords)

    def ask(self, *request: object) -> Any:
        """The result of a request (program.serve). Raises the exception that the program raised.

        Raises Abandoned if the process has ended, for what is not plain data, and for an exception that could end a
        test's own loops, or its run.
        """
        try:
            data = values.encode(request)
        except values.NotAValue as error:
            raise self.leave(f"an argument of the program is not plain data: {error}") from None
        with self._lock:
            kind, *content = self._answer(data)
        self.answers += 1
        if kind == "object":
            raise self.leave(f"the program returned what is not plain data: {content[0]}")
        if kind == "value":
            return content[0]
        raised = _exception(*content)
        if not isinstance(raised, Exception | SystemExit) or isinstance(raised, StopIteration | StopAsyncIteration):
            raise self.fail(f"the program raised {type(raised).__name__}: {raised}"[:300])
        raise raised

    def _answer(self, request: bytes) -> tuple[Any, ...]:
        """The kind and the content of the answer to a request."""
        if self.gone:
            raise Abandoned(self.gone)
        try:
            values.send(self._outbox, request)
            data = values.receive(self._inbox)
        except BrokenPipeError:
            data = None
        if data is None:
            self.gone = "the program's process ended before it answered"
            raise Abandoned(self.gone)
        try:
            answer = values.decode(data, self._guards or b"numpy" in data)
            if _is_answer(answer):
                return answer
            problem = ""
        except values.NoElements as error:
            raise self.leave(str(error)) from None
        except values.BadBytes as error:
            problem = f": {error}"
        self.forged, self.gone = True, f"the program's process sent an invalid answer{problem}"
        raise Abandoned(self.gone)

    def fail(self, reason: str) -> Abandoned:
        """Fail the current test. Returns what to raise."""
        self.failed = self.failed or reason
        return Abandoned(reason)

    def leave(self, reason: str) -> Abandoned:
        """Leave the current test without a verdict. Returns what to raise."""
        self.unjudged = self.unjudged or reason
        return Abandoned(reason)


def _is_answer(answer: Any) -> bool:
    """Whether a value of the program's process is an answer of program.serve."""
    if type(answer) is not tuple or len(answer) not in (2, 3) or type(answer[0]) is not str:
        return False
    kind, *content = answer
    if kind == "raised" and len(content) == 2 and type(content[0]) is str:
        error = getattr(builtins, content[0], None)
        return isinstance(error, type) and issubclass(error, BaseException)
    return len(content) == 1 and (kind == "value" or (kind == "object" and type(content[0]) is str))


def _exception(name: str, arguments: Any) -> BaseException:
    """The exception of a built-in class, which ends or skips no test."""
    kind = getattr(builtins, name)
    try:
        return kind(*arguments)
    except (TypeError, ValueError):  # arguments that the class does not take
        return Exception(f"{name}: {arguments}"[:300])


def _judge(job: Marshalled, report: Callable[..., None], pipes: list[int]) -> None:
    """Load the program in the other process, then run the tests here, each with the functions that it may call."""
    program = Program(pipes, job["guards"])
    sys.modules["tests"] = module = types.ModuleType("tests")
    try:
        program.ask("load", job["program"])
    except BaseException as error:  # whatever the program raised
        return report("u", f"the program does not load: {describe(error)}")
    problem = _execute(job["setup"], module)  # which may define the prompt's stub
    vars(module).update({name: program.function(name) for name in job["functions"]})
    sys.addaudithook(lambda event, arguments: _refuse_text(program, event, arguments))
    for code in job["tests"]:
        program.begin()
        raised = problem or _execute(code, module)
        # What the program did to the judge comes first: a test may catch what told it.
        text = program.gone or program.failed or raised
        if program.forged:
            return report("x", program.gone)
        if program.unjudged and not program.gone:
            report("?", program.unjudged)
        else:
            report("-" if text else "+", text)
    return report("d")


def _refuse_text(program: Program, event: str, arguments: Sequence[object]) -> None:
    """Leave a test without a verdict before it runs a text, unpickles, or starts a process, once the program has
    answered: the text may be the program's. Imports of modules are allowed."""
    if not program.answers:
        return
    if event == "compile":
        source = str(arguments[1])
    elif event == "exec":
        source = str(getattr(arguments[0], "co_filename", "<string>"))
    else:
        if event in _RUNS:
            raise program.leave(f"the test may run what the program returned ({event})")
        return
    if source.startswith("<") and not source.startswith("<frozen") and not _is_imported(sys._getframe(2)):
        raise program.leave(f"the test may run a text that the program returned ({event})")


def _is_imported(frame: types.FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None
