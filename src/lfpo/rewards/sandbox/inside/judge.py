"""The judge process. It holds tests and expected values, and gets only plain data from the program's process."""

from __future__ import annotations

import marshal
import os
import sys
import types

from . import values

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .judged import Program

TOGETHER = "__test__"
"""Name of the module that holds program and tests, as in BigCodeBench's own runner."""


def serve(inbox: int, outbox: int, settings: dict[str, Any]) -> None:
    """Judge one job, marshalled by the host (job.encode_job), and report each test as it ends, so that a later hang
    does not lose earlier passes.

    A report is a letter and a text: + passed, - failed, s skipped, n number of tests, u the program does not load, d
    done. With `together` the program runs in this process, and a nonce is before each report, so that output by
    accident is not one; nothing defends such a verdict from a program that cheats.
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
        _judge(job, report, (settings["program_inbox"], settings["program_outbox"]))


def describe(error: BaseException) -> str:
    """Type and message of the error."""
    return str(error) if isinstance(error, values.Abandoned) else f"{type(error).__name__}: {error}".rstrip(": ")


def _execute(code: bytes, module: types.ModuleType) -> str:
    """Run marshalled code of the suite. Why it failed, or ""."""
    try:
        exec(marshal.loads(code), vars(module))
    except BaseException as error:  # a failed assertion, or what the program raised
        return describe(error) or "failed"
    return ""


def _judge_together(job: dict[str, Any], report: Callable[..., None]) -> None:
    sys.modules[TOGETHER] = module = types.ModuleType(TOGETHER)
    vars(module).update(sys=sys, os=os, environ=os.environ)  # as in BigCodeBench's own runner
    problem = _execute(job["setup"], module)
    try:
        exec(compile(job["program"], "<program>", "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # also SystemExit
        return report("u", f"the program does not load: {describe(error)}")
    if problem := problem and _execute(job["setup"], module):  # it may use the program's classes
        return report("u", f"the setup does not load: {problem}")
    if not job["unittest"]:
        for code, _ in job["tests"]:
            report("-" if (problem := _execute(code, module)) else "+", problem)
    elif problem := _execute(job["tests"][0][0], module):
        return report("u", f"the suite does not load: {problem}")
    else:
        from .unittest_cases import find_cases, run

        run(find_cases(module), lambda problem: report("-" if problem else "+", problem))
    return report("d")


def _judge(job: dict[str, Any], report: Callable[..., None], pipes: tuple[int, int]) -> None:
    from . import strict
    from .judged import Program

    program = Program(pipes, job["stops"])
    sys.modules["tests"] = module = types.ModuleType("tests")
    strict.install(vars(module), program.fail)
    try:
        program.ask("load", job["program"])
    except BaseException as error:  # whatever the program raised
        return report("u", f"the program does not load: {describe(error)}")
    tests = job["tests"]
    if problem := _prepare(job, module, program):
        for _ in range(job["expected"]):
            report("-", problem)
    elif not job["unittest"]:
        for code, modes in tests:
            report(*_in_modes(program, modes, _execute, code, module))
    elif problem := _execute(tests[0][0], module):
        report("-", problem)
    else:
        from .unittest_cases import find_cases, outcome  # importing unittest takes longer than most jobs

        cases = find_cases(module)
        report("n", str(len(cases)))
        for case in cases:
            report(*_in_modes(program, tests[0][1], outcome, case))
    return report("d")


def _prepare(job: dict[str, Any], module: types.ModuleType, program: Program) -> str:
    """Define the suite's names: its modules, what the setup defines, and then what it takes from the program."""
    space = vars(module)
    try:
        for name, imported, member in job["imports"]:
            __import__(imported)
            space[name] = getattr(sys.modules[imported], member) if member else sys.modules[imported]
        problem = _execute(job["setup"], module)  # which may define the prompt's stub
        for name in () if problem else job["functions"]:
            space[name] = program.ask("define", name)
    except BaseException as error:  # the program does not define the name
        return describe(error)
    return problem


def _in_modes(program: Program, modes: str, run: Callable[..., str], *test: Any) -> tuple[str, str]:
    """Run a test once or twice: c with calls that get copies, s with arguments that calls change in place.

    "sc" is for a test that uses an argument after the call: it must pass in place, and if a call has changed an
    argument, with copies too. A program could otherwise change what it is compared with.
    """
    for mode in modes:
        changed = program.changed
        program.begin(in_place=mode == "s")
        if modes == "sc" and mode == "c" and not changed:
            break
        problem = run(*test)
        if problem == "skipped" and not program.calls:
            return "s", ""
        if problem := program.gone or program.refused or problem:
            return "-", problem
    return "+", ""
