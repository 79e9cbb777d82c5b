"""The judge process. It holds tests and expected values, and gets only values from the program's process."""

from __future__ import annotations

import importlib
import os

from . import wire
from .remote import Abandoned, Link

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
    """Type and message of the error."""
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
    """Python's equality, except: True is not 1, nan equals nan, and floats may differ by the tolerance.

    The tolerance is relative if the expected value is above 1, else absolute.
    """
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
    except OverflowError:  # an int too large for a float
        return False


def _run_tests(job: dict[str, Any], link: Link, report: Report, announce: Callable[[int], None]) -> None:
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        _bind(job, link, namespace)
        exec(compile(job["setup"], "<setup>", "exec"), namespace)  # after _bind, to override the program's names
        if job["entry_point"]:
            namespace[job["entry_point"]] = link.ask("global", job["entry_point"])
    except BaseException as error:  # the program does not define the entry point, or the setup fails
        for _ in job["tests"]:
            report(False, describe(error))
        return
    if job["unittest"]:
        from .unittest_cases import run_cases  # imported here: importing unittest takes longer than most jobs

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
    """Define the names that setup and tests use: modules are imported here, other names come from the program."""
    for name in job["modules"]:
        namespace[name] = importlib.import_module(name)
    defined = link.ask("names", job["names"])
    for name in job["names"]:
        if name in defined:
            namespace[name] = link.ask("global", name)
