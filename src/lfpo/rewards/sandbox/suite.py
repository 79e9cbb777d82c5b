"""What a suite of tests takes from the program, found in its source before anything runs.

The suite may take its entry point, and the functions and classes that the job names. Every other name must be defined
by the suite; a suite that lacks one is not judged.
"""

from __future__ import annotations

import ast
import builtins
import functools
import io
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

from lfpo.base.errors import UserError

# Names that suites often use without importing them, because programs usually do. The judge imports its own.
_MODULES = {
    *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools"),
    *("json", "math", "operator", "random", "re", "statistics", "string", "sys", "typing"),
}
_ALIASES = {"np": "numpy", "numpy": "numpy", "pd": "pandas", "pandas": "pandas"}
_MEMBERS = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("isclose", "inf", "sqrt", "pi"), "math"),
    **dict.fromkeys(("date", "timedelta"), "datetime"),
    **dict.fromkeys(("List", "Dict", "Set", "Tuple", "Optional", "Any", "Union"), "typing"),
    "Decimal": "decimal",
    "Fraction": "fractions",
}
_IMPORTS_MOCK = re.compile(
    r"^\s*(?:from (?:unittest\.)?mock import|from unittest import.*\bmock\b|import.*\bmock\b)", re.M
)
_LOOKS_LIKE_A_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*")
# What a test can see of a program only if both run in one process: files, random numbers, warnings and logs, the inside
# of a function.
_ONE_PROCESS = re.compile(
    r"\b(?:open\(|tempfile\b|tmp_path\b|os\.path\.(?:exists|isfile|isdir)|random\.seed\(|warnings\.|pytest\.warns"
    r"|assertWarns|assertLogs|wait_for\(|\bhash\(|IntEnum\b|Enum\)|caplog\b|capsys\b|capfd\b|monkeypatch\b|inspect\.|get_type_hints|pickle\.|GeneratorType\b"
    r"|__doc__|__annotations__|__defaults__|__code__|__wrapped__|iscoroutinefunction)"
)
_PLAIN: tuple[object, ...] = (0, 0.0, 0j, "", b"", bytearray(), [], (), {}, {}.items(), set(), frozenset(), range(0))
_PLAIN += (deque(), None, Fraction(0), Decimal(0), datetime.min, time.min, timedelta(), iter([]), io.StringIO())
_PLAIN += (re.compile(""), re.match("", ""), ExceptionGroup("", [OSError()]), OSError())
_METHODS = {name for value in _PLAIN for name in dir(value) if callable(getattr(value, name, None))} | {
    *("tolist", "item", "sum", "mean", "std", "all", "any", "min", "max", "flatten", "ravel", "reshape", "astype"),
    *("round", "equals", "to_list", "to_numpy", "send", "close", "cache_info", "cache_clear"),
}
_DATA = {name for value in _PLAIN for name in dir(value)} - _METHODS | {"shape", "dtype", "ndim", "T", "iloc", "loc"}
_TO_TEXT = {"str", "repr", "format", "print"}

# Python 3.11 before 3.11.8 can raise SystemError when two threads are in ast.parse (python/cpython#106905), and
# catch_warnings changes the state of all threads.
_PARSE_LOCK = threading.Lock()


@dataclass(frozen=True)
class Suite:
    """What a job's tests take from the program.

    entry_point, functions, classes: names of the program. imports: (name, module, member or "") of what the judge
    imports for the suite. suite_classes: classes that the suite defines. in_place: for each test, whether it tests what
    a call changes in its arguments. output: the tests look at what the program prints. input: they give it text to
    read. numpy: they use numpy. needs: why the suite cannot be judged, or "".
    """

    entry_point: str
    functions: tuple[str, ...]
    classes: tuple[str, ...]
    imports: tuple[tuple[str, str, str], ...]
    suite_classes: tuple[str, ...]
    in_place: tuple[bool, ...]
    output: bool
    input: bool
    numpy: bool
    needs: str


@functools.lru_cache(maxsize=2048)
def read_suite(
    tests: tuple[str, ...], setup: str, entry_point: str, functions: tuple[str, ...], classes: tuple[str, ...] | None
) -> Suite:
    """The suite of a job. Without an entry point, it is the only name that the suite lacks.

    Raises UserError for a test or setup that is not Python.
    """
    preparation = list(ast.walk(parsed(setup, "the setup", entry_point)))
    walked = [list(ast.walk(parsed(test, f"test {number}", entry_point))) for number, test in enumerate(tests)]
    nodes = [*preparation, *(node for test in walked for node in test)]
    missing = _loaded(nodes) - set(_bound(nodes)) - {entry_point, *functions, *(classes or ())}
    missing = {name for name in missing if not hasattr(builtins, name)} - {"__name__", "__file__"}
    known = {name for name in missing if name in _MODULES or name in _ALIASES or name in _MEMBERS}
    unknown = missing - known
    if not entry_point and not functions and not classes and len(unknown or known) == 1:
        [entry_point] = unknown or known
        unknown, known = unknown - {entry_point}, known - {entry_point}
    source = "\n".join((setup, *tests))
    names = {entry_point, "candidate", *functions}
    needs = _needs(nodes, source, unknown, entry_point, functions, classes)
    if tests and not needs and not _loaded(nodes) & {entry_point, *functions, *(classes or ())}:
        needs = "a use of the program in the tests: every program would pass them"
    return Suite(
        entry_point=entry_point,
        functions=functions,
        classes=classes or (),
        imports=tuple(sorted(_import(name, nodes) for name in known)),
        suite_classes=tuple(sorted({node.name for node in nodes if isinstance(node, ast.ClassDef)})),
        in_place=tuple(_tests_changes([*preparation, *test], names) for test in walked),
        output="stdout" in source or "stderr" in source,
        input="stdin" in source,
        numpy="numpy" in source or "np" in known,
        needs=needs,
    )


@functools.lru_cache(maxsize=2048)
def names_in_solution(
    tests: tuple[str, ...], setup: str, entry_point: str, solution: str
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """What a suite takes from a correct program: functions, classes, and imports as source for the setup.

    Raises UserError for a source that is not Python.
    """
    trees = [parsed(source, "a test", entry_point) for source in (*tests, setup)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    missing = _loaded(nodes) - set(_bound(nodes)) | {entry_point}
    functions, classes, imports = set(), set(), []
    for node in parsed(solution, "the solution", entry_point).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in missing - {entry_point}:
            functions.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name in missing:
            classes.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom) and set(_bound([node])) & missing:
            imports.append(ast.unparse(node))
    return tuple(sorted(functions)), tuple(sorted(classes)), "\n".join(imports)


def parsed(source: str, what: str, name: str) -> ast.Module:
    """The syntax tree of a source of a job. Raises UserError if it is not Python."""
    try:
        with _PARSE_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like
            return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{what} of {name or 'a job'} is not Python: {error}") from error


def _loaded(nodes: list[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that the suite defines anywhere."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            yield node.name or "_"
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _import(name: str, nodes: list[ast.AST]) -> tuple[str, str, str]:
    """Name, module and member ("" for the module itself)."""
    if name == "datetime" and any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name for node in nodes
    ):
        return name, name, name  # the class
    return (name, _MEMBERS[name], name) if name in _MEMBERS else (name, _ALIASES.get(name, name), "")


def _tests_changes(nodes: list[ast.AST], names: set[str]) -> bool:
    """Whether a test looks at what calls of the program change in their arguments.

    Either it ignores the result of a call outside `try` and `with`, where it would test an exception. Or it compares
    each variable that it passes with a value of its own afterwards; then a program gains nothing by emptying them.
    """
    guarded = {
        id(child)
        for node in nodes
        if isinstance(node, ast.Try | ast.TryStar | ast.With | ast.AsyncWith | ast.Lambda)
        for child in ast.walk(node)
    }
    statements = [node for node in nodes if isinstance(node, ast.Expr) and id(node) not in guarded]
    return any(_calls(node.value, names) for node in statements) or _compares_all_arguments(nodes, names)


def _compares_all_arguments(nodes: list[ast.AST], names: set[str]) -> bool:
    calls = [node for node in nodes if isinstance(node, ast.Call) and _calls(node, names)]
    passed = {
        argument.id: _position(call)
        for call in sorted(calls, key=_position)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(argument, ast.Name)
    }
    assigned: dict[str, list[ast.expr]] = {name: [] for name in _bound(nodes)}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id].append(node.value)
    constants = {name for name, values in assigned.items() if values and all(map(_is_constant, values))}
    theirs = passed.keys() | names

    def is_own(node: ast.expr) -> bool:
        values = assigned.get(node.id, []) if isinstance(node, ast.Name) else [node]
        return bool(values) and all(_is_new(value) and not theirs & _loaded(list(ast.walk(value))) for value in values)

    compared = {
        side.id
        for left, right, place in _equalities(nodes)
        for side, other in ((left, right), (right, left))
        if isinstance(side, ast.Name) and place > passed.get(side.id, place) and is_own(other)
    }
    return bool(compared) and passed.keys() <= compared | constants


def _equalities(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr, tuple[int, int]]]:
    """The two sides of each `==` and assertEqual, and where it is."""
    for node in nodes:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            yield node.left, node.comparators[0], _position(node)
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if method.startswith("assert") and method.endswith("Equal"):
                yield node.args[0], node.args[1], _position(node)


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _is_new(node: ast.expr) -> bool:
    """Whether an expression makes an object of its own, rather than naming one."""
    made = ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.BinOp | ast.Call
    return _is_constant(node) or isinstance(node, made)


def _calls(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Await):
        node = node.value
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _needs(
    nodes: list[ast.AST],
    source: str,
    unknown: set[str],
    entry_point: str,
    functions: tuple[str, ...],
    classes: tuple[str, ...] | None,
) -> str:
    if unknown:
        return f"a definition of {', '.join(sorted(unknown))} in the tests, or its name in functions or classes"
    if uncalled := _uncalled_test(nodes):
        return f"a call of {uncalled}, which the tests define and do not use"
    if _IMPORTS_MOCK.search(source):
        return "together=True, because the tests patch objects"
    if any(isinstance(node, ast.Attribute) and _patches(node) for node in nodes):
        return "together=True, because the tests assign attributes of modules"
    names = {entry_point, *functions}
    if not classes and any(isinstance(node, ast.Compare) and _compares_identity(node, names) for node in nodes):
        return "together=True, because the tests use `is` with a result"
    if classes is not None:
        if derived := next((name for node in nodes for name in _bases(node) if name in classes), ""):
            return f"together=True, because the tests derive from a class of the program or match it: {derived}"
        return ""
    if found := _ONE_PROCESS.search(source):
        return (
            f"together=True, because the tests use {found[0].strip('.()')}, which works in the program's process only"
        )
    if name := _passed_coroutine(nodes):
        return f"together=True, because the tests pass the coroutine function {name} to the program"
    made = names | _names_of_results(nodes, names)
    results = [node for node in nodes if isinstance(node, ast.Attribute) and _is_result(node.value, names, made)]
    own = set(_bound(nodes)) | {node.attr for node in nodes if isinstance(node, ast.Attribute) and node not in results}
    compared = {id(side) for left, right, _ in _equalities(nodes) for side in (left, right)}
    foreign = [n.attr for n in results if n.attr not in _DATA | own and (id(n) in compared or n.attr not in _METHODS)]
    if foreign and not any(package in source for package in ("numpy", "np.", "pandas", "pd.")):
        return f"the program's classes in classes, because the tests use .{foreign[0]} of a result"
    if any(_is_result(printed, names, made) for node in nodes for printed in _printed(node)):
        return "the program's classes in classes (or classes=[]), because the tests use the text of a result"
    if _LOOKS_LIKE_A_CLASS.fullmatch(entry_point):
        return f"classes to be given: whether {entry_point} is a class (classes=[{entry_point!r}]) or not (classes=[])"
    return ""


def _printed(node: ast.AST) -> list[ast.expr]:
    """What an expression turns into text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TO_TEXT:
        return node.args
    return [node.value] if isinstance(node, ast.FormattedValue) else []


def _passed_coroutine(nodes: list[ast.AST]) -> str:
    """An `async def` of the suite that it uses without calling it; or ""."""
    defined = {node.name for node in nodes if isinstance(node, ast.AsyncFunctionDef)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    used = (node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called)
    return next((name for name in used if name in defined), "")


def _names_of_results(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """Variables to which the suite assigns a result only, and functions that the program decorates."""
    found: set[str] = set()
    others: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            (found if _is_result(node.value, names, names) else others).update(targets)
        elif isinstance(node, ast.FunctionDef) and any(_root(maker) in names for maker in node.decorator_list):
            found.add(node.name)
    return found - others


def _is_result(node: ast.AST, names: set[str], made: set[str]) -> bool:
    """Whether it is what a function of the program returned, or a variable with it; also `f(1)[0]` and `f(1)(2)`."""
    if isinstance(node, ast.Name):
        return node.id in made - names
    return isinstance(node, ast.Call | ast.Subscript | ast.Await) and _root(node) in names


def _root(node: ast.AST) -> str:
    """The name that a chain of calls, items and `await` begins with, or ""."""
    while isinstance(node, ast.Call | ast.Subscript | ast.Await):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _uncalled_test(nodes: list[ast.AST]) -> str:
    """A test function of a suite that nothing uses, so that every program would pass it; or ""."""
    modules = [node for node in nodes if isinstance(node, ast.Module)]
    defined = [node.name for tree in modules for node in tree.body if isinstance(node, ast.FunctionDef)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return next((name for name in defined if (name.startswith("test") or name == "check") and name not in used), "")


def _patches(node: ast.Attribute) -> bool:
    """Whether it assigns an attribute of a module, except a standard stream: those reach the program."""
    is_module = isinstance(node.value, ast.Name) and node.value.id in sys.stdlib_module_names
    return isinstance(node.ctx, ast.Store) and is_module and node.attr not in {"stdin", "stdout", "stderr"}


def _compares_identity(node: ast.Compare, names: set[str]) -> bool:
    """Whether `is` compares a result with something other than a constant or a type."""
    sides = [node.left, *node.comparators]
    others = [side for side in sides if not _calls(side, names)]
    plain = all(isinstance(o, ast.Constant) or (isinstance(o, ast.Name) and hasattr(builtins, o.id)) for o in others)
    return any(isinstance(op, ast.Is) for op in node.ops) and any(_calls(s, names) for s in sides) and not plain


def _bases(node: ast.AST) -> list[str]:
    """Names of the classes that a class definition or a pattern uses."""
    used = node.bases if isinstance(node, ast.ClassDef) else [node.cls] if isinstance(node, ast.MatchClass) else []
    return [base.id for base in used if isinstance(base, ast.Name)]
