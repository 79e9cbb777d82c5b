"""The judge process. It holds tests and expected values, and gets only plain data from the program's process.

The host rewrites operators and called functions in a suite's source to calls of `__operate__` and `__checked__`
(suite.py): emptiness equals nothing but emptiness, and the program's value is not broadcast. A function is known by
what it is, not by the name that the suite gives it.
"""

from __future__ import annotations

import _operator as operator  # `operator` takes longer to import
import marshal
import os
import sys
import types

from . import objects, values

TYPE_CHECKING = False  # importing typing would double the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Marshalled = dict[str, Any]  # a job, or settings

TOGETHER = "__test__"
"""Name of the module that holds program and tests, as in BigCodeBench's own runner."""
_PLAIN = {int, float, str, bool, list, dict, tuple, set, type(None)}
_RUNS = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"}
_NUMERIC = {"numpy", "pandas", "scipy"}
_ARRAYS = _NUMERIC | {"_pytest"}
_COMPARISONS = {
    *("allclose", "allequal", "isclose", "array_equiv", "equal", "not_equal", "subtract", "add", "divide"),
    *("less", "less_equal", "greater", "greater_equal", "logical_and", "assert_allclose", "assert_equal"),
    *("assert_almost_equal", "assert_approx_equal", "assert_array_almost_equal", "assert_array_equal"),
    *("assert_array_less", "assert_array_almost_equal_nulp", "assert_array_max_ulp"),
}
_PAIRING = {"isin", "in1d", "setdiff1d", "broadcast", "broadcast_arrays"}
_OPERATORS = {"eq", "ne", "lt", "le", "gt", "ge", "sub", "add", "mul", "div", "truediv", "floordiv", "mod", "pow"}
_OPERATORS |= {"and", "or", "xor", "lshift", "rshift"}


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
        __checked__=lambda *function: _checked(link, *function),
        __type__=lambda value: _type_of(link, value),
    )
    objects.suite = vars(module)
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
    if not plain and (_home(type(left)) in _ARRAYS or _home(type(right)) in _ARRAYS):
        _refuse_emptiness(fail, left, right)
    return getattr(operator, name)(left, right)


def _home(value: object) -> str:
    """The package that a class or a function is from, or ""."""
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if type(module) is str else ""


def _refuse_emptiness(fail: Callable[[str], BaseException], *operands: object) -> None:
    shapes = [*map(_shape, operands)]
    if len({*shapes}) > 1 and any(0 in (shape or ()) for shape in shapes):
        raise fail(f"an empty array meets an array of another shape: {' and '.join(map(str, shapes))}")


def _type_of(link: Any, value: object) -> object:
    """`type(value)`, which only the program knows of its own objects."""
    if _is_own(value) or any(value is part for part in link.reduced):
        raise link.cannot("has as type")
    return type(value)


def _is_own(value: object) -> bool:
    """Whether a value stands for an object of the program."""
    return type(value).__module__.rpartition(".")[0] == __name__.rpartition(".")[0]


def _checked(link: Any, value: Any, side: str | None) -> object:
    """The value; in place of a function that compares or pairs elements, one that refuses what cannot be meant.

    A comparison of numpy refuses operands of which the program's does not have all elements of the other. Any other
    function that numpy broadcasts, `isin` and its like, and an operator as a function or a method refuse emptiness
    beside anything else; `zip` and `map` refuse what the program returned empty beside something. side: which operand
    is the program's, "first", "second" or "" if it is not known; None for a value that is not called.
    """
    kind = type(value)
    if _home(kind) not in {"builtins", "numpy"} or (side is None and kind is type):
        return value
    if value is zip or value is map:
        return lambda *operands, **how: _paired(link, value, operands, how)
    owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
    others = () if owner is None or isinstance(owner, types.ModuleType) else (owner,)
    homes = {_home(kind), _home(value), *(_home(type(other)) for other in others)}
    numeric = not homes.isdisjoint(_NUMERIC)
    if numeric and not others and name in _COMPARISONS:
        return lambda *args, **kwargs: _compared(link.fail, value, side or "", args, kwargs)
    elementwise = kind.__name__ in {"ufunc", "vectorize"} and not value.signature  # not matmul
    if numeric and (elementwise or (name == "outer" and others)):
        others = ()
    elif not (numeric and name in _PAIRING) and not (
        _is_operator(name) and (numeric or "_operator" in homes or name[:2] == "__")
    ):
        return value

    def checked(*args: object, **kwargs: object) -> object:
        operands = (*others, *args) if kind.__name__ == "vectorize" else (*others, *args)[:2]
        if numeric or any(_home(type(operand)) in _ARRAYS for operand in operands):
            _refuse_emptiness(link.fail, *operands)
        return value(*args, **kwargs)

    return checked


def _is_operator(name: str) -> bool:
    """Whether a function or method is an operator, such as `eq`, `__eq__`, `radd`, `ixor`."""
    bare = name.strip("_")
    return bare in _OPERATORS or (bare[:1] in {"i", "r"} and bare[1:] in _OPERATORS)


def _compared(
    fail: Callable[[str], BaseException],
    compare: Callable[..., object],
    side: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """What a comparison of numpy gives, unless the program's operand lacks elements of the other."""
    operands = [*args, *kwargs.values()][:2]
    if len(operands) == 2:
        a, b = map(_shape, reversed(operands) if side == "second" else operands)
        if a is not None and b is not None and a != b and not _covers(a, b, bool(side)):
            raise fail(f"shapes differ: {a} and {b}")
    return compare(*args, **kwargs)


def _paired(link: Any, pair: Callable[..., object], operands: tuple[Any, ...], how: dict[str, object]) -> object:
    """`zip` or `map` of the operands, unless the program returned an empty one and another is not empty."""
    returned = [operand for operand in operands if link.empty.get(id(operand)) is operand]
    if returned and any(hasattr(type(other), "__len__") and not _is_own(other) and len(other) for other in operands):
        raise link.fail("the program returned nothing to pair with the elements of the test")
    return pair(*operands, **how)


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of the array that numpy makes of a value, or of what pytest.approx holds; None for what is ragged. The
    value is not asked for its shape, which could be a field of the program's own."""
    import numpy

    value = getattr(value, "expected", value) if type(value).__module__.startswith("_pytest") else value
    try:
        return tuple(numpy.asarray(value).shape)
    except Exception:  # whatever an object's own way to an array raises
        return None


def _covers(shape: tuple[int, ...], expected: tuple[int, ...], known: bool) -> bool:
    """Whether an array of one shape has an element for each of the other. Of unknown operands the other is a number."""
    if 0 in shape or 0 in expected or not (known or expected == ()):
        return False
    wide = (1,) * (len(shape) - len(expected)) + expected
    return len(shape) >= len(expected) and all(a == b or b == 1 for a, b in zip(shape, wide, strict=True))
