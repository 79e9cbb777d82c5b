"""The judge process. It holds tests and expected values, and gets only plain data from the program's process."""

from __future__ import annotations

import marshal
import sys
import types

from . import strict, values
from .link import Abandoned, Handle, Link, error_class

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Judge one job and report each test as it ends, so that a later hang does not lose earlier passes.

    A report is a letter and a text: + passed, - failed, s skipped, n number of tests, u the program does not load, d
    done.
    """
    data = values.receive(inbox)
    if data is not None:
        _Judge(marshal.loads(data), outbox, Link(settings["program_inbox"], settings["program_outbox"])).run()


def describe(error: BaseException) -> str:
    """Type and message of the error."""
    return str(error) if isinstance(error, Abandoned) else f"{type(error).__name__}: {error}".rstrip(": ")


class _Judge:
    """job: marshalled by the host (job.encode_job)."""

    def __init__(self, job: dict[str, Any], outbox: int, link: Link) -> None:
        self.job, self.outbox, self.link = job, outbox, link
        sys.modules["tests"] = self.module = types.ModuleType("tests")
        strict.install(vars(self.module), link.refuse)
        sys.set_int_max_str_digits(0)  # the program's own setting does not reach this process
        sys.setrecursionlimit(20_000)  # for values that are nested deeply

    def report(self, letter: str, text: str = "") -> None:
        values.send(self.outbox, f"{letter}{text[:500]}".encode("utf-8", "replace"))

    def run(self) -> None:
        try:
            self.link.ask("load", self.job["program"])
        except BaseException as error:  # whatever the program raised
            self.report("u", f"the program does not load: {describe(error)}")
            return
        problem = self.prepare()
        tests = self.job["tests"]
        if problem:
            for _ in range(self.job["expected"]):
                self.report("-", problem)
        elif self.job["unittest"]:
            self.run_unittest(*tests[0])
        else:
            for code, modes in tests:
                self.report(*self.in_modes(modes, lambda code=code: self.execute(code)))
        self.report("d")

    def prepare(self) -> str:
        """Define the suite's names: its modules, what the setup defines, and then what it takes from the program."""
        space = vars(self.module)
        try:
            for name, module, member in self.job["imports"]:
                __import__(module)
                space[name] = getattr(sys.modules[module], member) if member else sys.modules[module]
            for name in self.job["classes"]:
                self.define(name)
            problem = self.execute(self.job["setup"])  # which may define the prompt's stub
            for name in () if problem else self.job["functions"]:
                self.define(name)
        except BaseException as error:  # the program does not define the name
            return describe(error)
        return problem

    def define(self, name: str) -> None:
        kind, found = self.link.ask("define", name)
        is_error = kind == "error"
        value = error_class(self.link._errors, tuple(found)) if is_error else None
        vars(self.module)[name] = value or Handle(self.link, int(found), is_open=True, is_class=kind == "class")

    def execute(self, code: bytes) -> str:
        """Run a source of the suite. Why it failed, or ""."""
        try:
            exec(marshal.loads(code), vars(self.module))
        except BaseException as error:  # a failed assertion, or what the program raised
            return describe(error) or "failed"
        return ""

    def in_modes(self, modes: str, run: Any) -> tuple[str, str]:
        """Run a test once or twice: c with calls that get copies, s with containers that both processes share.

        "sc" is for a test that uses an argument or changes a result after the call: it must pass with shared
        containers, and if a call has changed one, with copies too. A program could otherwise change what it is
        compared with.
        """
        for mode in modes:
            link = self.link
            link.refused, link.calls, link.stops = "", 0, self.job["stops"]
            changed = link.shared is None or link.shared.changed
            if mode == "c" and modes == "sc" and not changed:
                break
            link.shared = values.Shared() if mode == "s" else None
            problem = run()
            if problem == "skipped" and not link.calls:
                return "s", ""
            if problem := link.gone or link.refused or problem:
                return "-", problem
        return "+", ""

    def run_unittest(self, code: bytes, modes: str) -> None:
        from .unittest_cases import find_cases, outcome  # importing unittest takes longer than most jobs

        if problem := self.execute(code):
            self.report("-", problem)
            return
        cases = find_cases(self.module)
        self.report("n", str(len(cases)))
        for case in cases:
            self.report(*self.in_modes(modes, lambda case=case: outcome(case)))
