"""The judge process. It holds tests and expected values, and gets only plain data from the program's process."""

from __future__ import annotations

import os
import sys
import types

from . import wire
from .compare import refuse_broadcasting, same
from .link import Link
from .remote import Abandoned, Function

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Report = Callable[[bool, str], None]


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Judge one job and report each test as it ends, so that a later hang does not lose earlier passes."""
    data = wire.receive(inbox)
    if data is None:
        return
    job = wire.decode(data)
    link = Link(settings["program_inbox"], settings["program_outbox"])

    def report(passed: bool, reason: str) -> None:
        passed, reason = passed and not link.gone, link.gone or reason
        wire.send(outbox, wire.encode(("test", passed, reason[:500])))

    link.instances, link.input = bool(job["classes"]), job["input"]
    link.sends = any(".send(" in source for source in (job["setup"], *job["tests"]))
    sys.set_int_max_str_digits(0)  # the program's own setting does not reach this process
    sys.setrecursionlimit(20_000)  # for values that are nested deeply
    try:
        link.ask("load", job["program"], job["output"], job["suite_classes"])
    except BaseException as error:  # whatever the program raised
        wire.send(outbox, wire.encode(("unloadable", f"the program does not load: {describe(error)}")))
        os._exit(0)
    if job["calls"]:
        _compare_calls(job, link, report)
    else:
        _run_tests(job, link, report, lambda count: wire.send(outbox, wire.encode(("count", count))))
    wire.send(outbox, wire.encode(("done",)))


def describe(error: BaseException) -> str:
    """Type and message of the error."""
    return str(error) if isinstance(error, Abandoned) else f"{type(error).__name__}: {error}".rstrip(": ")


def _compare_calls(job: dict[str, Any], link: Link, report: Report) -> None:
    for args, kwargs, expected in job["calls"]:
        try:
            passed = same(_function(link, job["entry_point"])(*args, **kwargs), expected, job["tolerance"])
            report(passed, "" if passed else "another value than expected")
        except BaseException as error:  # whatever the program raised
            report(False, describe(error))


def _function(link: Link, name: str) -> Function:
    """A function of the program. Raises NameError or TypeError if it defines none of that name."""
    return Function(link, link.ask("function", name), named=True)


def _run_tests(job: dict[str, Any], link: Link, report: Report, announce: Callable[[int], None]) -> None:
    sys.modules["tests"] = module = types.ModuleType("tests")
    link.namespace = namespace = vars(module)

    def run(source: str, name: str, in_place: bool) -> str:
        """Run a source of the suite. Why it failed, or ""."""
        link.stops, link.in_place = "StopIteration" in job["setup"] + source, in_place
        try:
            exec(compile(source, name, "exec", dont_inherit=True), namespace)
        except BaseException as error:  # a failed assertion, or what the program raised
            return describe(error)
        return ""

    try:
        if job["numpy"]:
            import numpy.testing

            refuse_broadcasting(numpy)
        _bind(job, link, namespace)
        problem = run(job["setup"], "<setup>", False)
        for name in (job["entry_point"], *job["functions"]):  # after the setup, which may define the prompt's stub
            if name and name not in job["classes"]:
                namespace[name] = _function(link, name)
    except BaseException as error:  # the program does not define the entry point
        problem = describe(error)
    if problem:
        for _ in job["tests"]:
            report(False, problem)
    elif job["unittest"]:
        from .unittest_cases import find_cases, run_cases  # importing unittest takes longer than most jobs

        if problem := run("\n\n".join(job["tests"]), "<tests>", any(job["in_place"])):
            announce(1)
            report(False, problem)
        else:
            cases = find_cases(module)
            announce(len(cases))
            run_cases(cases, report)
    else:
        for number, source in enumerate(job["tests"]):
            problem = run(source, f"<test {number}>", job["in_place"][number])
            report(not problem, problem)


def _bind(job: dict[str, Any], link: Link, namespace: dict[str, Any]) -> None:
    """Define what the setup and tests use but do not define: modules and their members, and the program's classes."""
    for name, module, member in job["imports"]:
        __import__(module)
        namespace[name] = getattr(sys.modules[module], member) if member else sys.modules[module]
    for name in job["classes"]:
        namespace[name] = link.ask("class", name)
