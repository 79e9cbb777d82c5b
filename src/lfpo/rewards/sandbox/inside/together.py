"""Runs program and tests in one module of one process. Nothing defends the verdict from a program that cheats.

A report carries a nonce, so that output by accident is not one.
"""

from __future__ import annotations

import marshal
import os
import sys
import types

from . import values

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from typing import Any

NAME = "__test__"
"""The module's name, as in BigCodeBench's own runner."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Run one job and report each test as it ends (letters as in judge.serve). Exits the process."""
    data = values.receive(inbox)
    os.close(inbox)
    if data is None:
        return
    job = marshal.loads(data)
    nonce = job.pop("nonce")

    def report(letter: str, text: str = "") -> None:
        values.send(outbox, nonce + f"{letter}{text[:500]}".encode("utf-8", "replace"))

    sys.modules[NAME] = module = types.ModuleType(NAME)
    space = vars(module)
    space.update(sys=sys, os=os, environ=os.environ)  # as in BigCodeBench's own runner
    for what in ("setup", "program", *(("suite",) if job["suite"] else ())):
        try:
            exec(compile(job[what], f"<{what}>", "exec", dont_inherit=True), space)
        except BaseException as error:  # also SystemExit
            report("u", f"the {what} does not load: {type(error).__name__}: {error}")
            os._exit(0)
    if job["suite"]:
        import unittest

        from .unittest_cases import Result, find_cases

        result = Result(lambda problem: report("-" if problem else "+", problem))
        unittest.TestSuite(find_cases(module)).run(result)
    for source in job["tests"]:
        try:
            exec(compile(source, "<test>", "exec", dont_inherit=True), space)
            report("+")
        except BaseException as error:  # also SystemExit
            report("-", f"{type(error).__name__}: {error}")
    report("d")
    os._exit(0)
