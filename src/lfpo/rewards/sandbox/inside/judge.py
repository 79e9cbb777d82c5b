"""The trusted process: it holds tests and expected values, and asks the program's process for values only."""

from __future__ import annotations

import importlib
import os

from . import wire
from .remote import Abandoned, Link

TYPE_CHECKING = False  # typing itself would double the time to start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Report = Callable[[bool, str], None]


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Judge one job. Reports go out one by one, so that a later hang does not take earlier passes with it."""
    data = wire.receive(inbox)
    if data is None:
        return
    job = wire.decode(data)
    link = Link(settings["program_inbox"], settings["program_outbox"])

    def report(passed: bool, reason: str) -> None:
        passed, reason = passed and not link.gone, link.gone or reason
        wire.send(outbox, wire.encode(("test", passed, reason[:500])))

    try:
        link.ask("load", job["program"])
    except BaseException as error:  # whatever the program raised
        wire.send(outbox, wire.encode(("unloadable", f"the program does not load: {describe(error)}")))
        os._exit(0)
    if job["calls"]:
        _compare_calls(job, link, report)
    else:
        _run_tests(job, link, report, lambda count: wire.send(outbox, wire.encode(("count", count))))
    wire.send(outbox, wire.encode(("done",)))


def describe(error: BaseException) -> str:
    """The kind of the error and what it says."""
    return str(error) if isinstance(error, Abandoned) else f"{type(error).__name__}: {error}".rstrip(": ")


def _compare_calls(job: dict[str, Any], link: Link, report: Report) -> None:
    for args, kwargs, expected in job["calls"]:
        try:
            value = link.ask("call", link.ask("global", job["entry_point"]), args, kwargs)
            passed = same(value, expected, job["tolerance"])
            report(passed, "" if passed else "another value than expected")
        except BaseException as error:  # whatever the program raised
            report(False, describe(error))


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Equal as Python has it, but True is not 1; floats within the tolerance, relative above 1, and nan equals nan."""
    if type(value) is bool or type(expected) is bool:
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return value == expected or _close(value, expected, tolerance)
    if type(value) is not type(expected):
        return False
    if isinstance(value, list | tuple):
        return len(value) == len(expected) and all(same(a, b, tolerance) for a, b in zip(value, expected, strict=True))
    if isinstance(value, dict):
        return value.keys() == expected.keys() and all(same(value[k], expected[k], tolerance) for k in expected)
    return bool(value == expected)


def _close(value: float, expected: float, tolerance: float) -> bool:
    if isinstance(value, int) and isinstance(expected, int):
        return False
    if value != value or expected != expected:
        return value != value and expected != expected
    try:
        return abs(value - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an int beyond every float
        return False


def _run_tests(job: dict[str, Any], link: Link, report: Report, announce: Callable[[int], None]) -> None:
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        _bind(job, link, namespace)
        exec(compile(job["setup"], "<setup>", "exec"), namespace)  # after, so that what it defines is its own
        if job["entry_point"]:
            namespace[job["entry_point"]] = link.ask("global", job["entry_point"])
    except BaseException as error:  # an entry point that the program does not define, or a fault of the setup
        for _ in job["tests"]:
            report(False, describe(error))
        return
    if job["unittest"]:
        from .suite import run_cases  # unittest takes longer to import than a judgement lasts

        run_cases("\n\n".join(job["tests"]), namespace, report, announce)
        return
    for number, source in enumerate(job["tests"]):
        try:
            exec(compile(source, f"<test {number}>", "exec"), namespace)
        except BaseException as error:  # a failed assertion, or what the program raised
            report(False, describe(error))
        else:
            report(True, "")


def _bind(job: dict[str, Any], link: Link, namespace: dict[str, Any]) -> None:
    """Names that setup and tests use: modules are the judge's own, the rest is the program's, seen through the pipe."""
    for name in job["modules"]:
        namespace[name] = importlib.import_module(name)
    defined = link.ask("names", job["names"])
    for name in job["names"]:
        if name in defined:
            namespace[name] = link.ask("global", name)
