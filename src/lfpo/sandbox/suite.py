"""What a suite of tests takes from the program, and why it cannot be judged, found in its source before anything runs.

The suite may take its entry point, and the functions that the job names. Every other name must be defined by the suite;
a suite that lacks one is not judged. Only data crosses between suite and program (inside/values.py), so a suite that
would see another object than in a plain script is not judged either.
"""

import ast
import builtins
import functools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

from lfpo.config.errors import UserError
from lfpo.sandbox.syntax import quietly, syntax_tree

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_RUNS_TEXT = {"eval", "exec", "compile", "__import__", "import_module", "run_path", "system", "popen", "Popen"}
_RUNS_TEXT |= {"read_pickle", "pickle", "marshal", "dill", "joblib", "shelve", "subprocess", "runpy"}
_RUNS_TEXT |= {"sympy", "jinja2", "numexpr", "yaml", "cloudpickle", "doctest", "timeit"}
_SHARED = {"open", "redirect_stdout", "redirect_stderr", "capsys", "tempfile", "tmp_path", "write_text", "write_bytes"}
_SHARED |= {"read_text", "read_bytes", "listdir", "makedirs", "mkdir", "isfile", "isdir", "environ", "putenv", "chdir"}
_SHARED |= {"warns", "assertWarns", "recwarn", "assertLogs", "caplog", "__cause__", "__context__", "__notes__"}
"""Test and program each have their own of these: files, output, environment, warnings, and exceptions' companions."""
_NUMERIC = {"numpy", "scipy", "pandas", "pytest"}
"""Libraries in which nothing may equal everything: `np.allclose([], 5.0)`. They get no emptiness from the program."""
_SINGLE = {"Ellipsis", "NotImplemented"}
_COPIES = "together=True, because the tests look at an argument after the call, change a result or compare it by `is`"


@dataclass(frozen=True)
class Suite:
    """names: functions of the program, the entry point first. setup, tests: their code. needs: why the suite cannot
    be judged, or "". guards: whether it uses libraries that take nothing for equal to everything.
    """

    names: tuple[str, ...]
    setup: CodeType
    tests: tuple[CodeType, ...]
    needs: str
    guards: bool


@functools.lru_cache(maxsize=2048)
def read_suite(tests: tuple[str, ...], setup: str, entry_point: str, functions: tuple[str, ...]) -> Suite:
    """The suite of a job. Without an entry point, it is the only name that the suite lacks. Raises UserError for a test
    or setup that is not Python."""
    trees = [parsed(source, f"test {number}", entry_point) for number, source in enumerate(tests)]
    prepared = parsed(setup, "the setup", entry_point)
    walked = [list(ast.walk(tree)) for tree in trees]
    nodes = [*ast.walk(prepared), *(node for test in walked for node in test)]
    unknown = missing_names(nodes) - {entry_point, *functions}
    if not entry_point and not functions and len(unknown) == 1:
        entry_point = unknown.pop()
    names = tuple(dict.fromkeys(name for name in (entry_point, *functions) if name))
    calling = {*names, "candidate"}
    needs = _needs(nodes, unknown)
    if not needs and not _loaded(nodes) & {*names}:
        needs = "a use of the program in the tests: every program would pass them"
    if not needs and any(_sees_copies(test, calling) for test in walked):
        needs = _COPIES
    return Suite(
        names=names,
        setup=code(prepared, "<setup>"),
        tests=tuple(code(tree, f"<test {number}>") for number, tree in enumerate(trees)),
        needs=needs,
        guards=not _imported(nodes).isdisjoint(_NUMERIC),
    )


@functools.lru_cache(maxsize=2048)
def names_in_solution(
    tests: tuple[str, ...], setup: str, entry_point: str, solution: str
) -> tuple[tuple[str, ...], str, str]:
    """What a suite takes from a correct program: functions of the program that is judged; source for the setup, with
    the solution's imports, or with the solution itself if the tests use it to help; and why it cannot be judged.

    A function helps if it is not the entry point. Without an entry point it helps if no test uses it alone: `close` in
    `close(f(1), 2.0)`. A program could otherwise judge itself. Raises UserError for a source that is not Python.
    """
    trees = [[*ast.walk(parsed(source, "a test", entry_point))] for source in (*tests, setup)]
    missing = missing_names(node for tree in trees for node in tree) | {entry_point}
    body = parsed(solution, "the solution", entry_point).body
    functions = {n.name for n in body if isinstance(n, FUNCTIONS)} & missing
    classes = {n.name for n in body if isinstance(n, ast.ClassDef)} & missing
    imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom) and set(_bound([n])) & missing]
    alone = {name for used in (functions & _loaded(tree) for tree in trees) if len(used) == 1 for name in used}
    tested = {entry_point} if entry_point else alone
    source = solution if functions - tested else "\n".join(map(ast.unparse, imports))
    needs = ""
    if classes:
        needs = f"together=True, because only the program could answer for its class {min(classes)}"
    elif functions and not tested:
        needs = f"an entry_point, because the tests use {', '.join(sorted(functions))} together"
    return tuple(sorted(functions & tested)), source, needs


def parsed(source: str, what: str, name: str) -> ast.Module:
    """The syntax tree of a source of a job. Raises UserError if it is not Python."""
    try:
        return cast(ast.Module, syntax_tree(source))
    except ValueError as error:
        raise UserError(f"{what} of {name or 'a job'} is not Python: {error}") from error


def code(tree: ast.Module, name: str) -> CodeType:
    """The code of a tree. Raises UserError if it cannot be compiled."""
    try:
        with quietly():
            return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{name} of a job cannot be compiled: {error}") from error


def missing_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that the suite uses and does not define."""
    nodes = list(nodes)
    undefined = {name for name in _loaded(nodes) - set(_bound(nodes)) if not hasattr(builtins, name)}
    return undefined - {"__name__", "__file__"}


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that the suite defines anywhere."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif not isinstance(node, ast.alias | ast.keyword):  # definitions, handlers of exceptions, patterns, arguments
            yield from (
                name for field in ("name", "rest", "arg") if isinstance(name := getattr(node, field, None), str)
            )


def _sees_copies(nodes: list[ast.AST], names: set[str]) -> bool:
    """Whether a test could tell a copy from the object: it changes a result, which the program may still hold, compares
    one by `is`, or looks at an argument after the call, which the program may have changed."""
    results = _results(nodes, names)
    if any(_changes(node, results) or _compares_identity(node, names | results) for node in nodes):
        return True
    statements = [n for n in nodes if isinstance(n, ast.stmt)]
    parts: list[Any] = [n for n in statements if not hasattr(n, "body")]
    parts += [c for n in statements if hasattr(n, "body") for c in ast.iter_child_nodes(n) if isinstance(c, ast.expr)]
    parts += [value for n in parts if isinstance(getattr(n, "test", None), ast.BoolOp) for value in n.test.values]
    first: dict[str, tuple[int, int]] = {}  # where the program first gets a variable
    looks: list[tuple[tuple[int, int], set[str]]] = []  # where the test alone uses variables
    for part in parts:
        place = part.lineno, part.col_offset
        inner = [*ast.walk(part)]
        calls = [n for n in inner if isinstance(n, ast.Call) and getattr(n.func, "id", None) in names]
        passed = {name for call in calls for value in (*call.args, *call.keywords) for name in _variables(value)}
        for name in passed:
            first[name] = min(place, first.get(name, place))
        if not passed:
            looks.append((place, _loaded(inner)))
    return any(place > first[name] for place, used in looks for name in used & {*first})


def _variables(node: ast.AST) -> set[str]:
    """Variables in an argument, without those in calls there: `deepcopy(x)` is another object."""
    if isinstance(node, ast.Call | ast.Lambda):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*map(_variables, ast.iter_child_nodes(node)))


def _changes(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement sets an item of a variable, or calls a method and ignores its result."""
    sets = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
    calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return (sets or calls) and _root(node.value if calls else node) in names  # type: ignore[attr-defined]


def _root(node: ast.AST) -> str:
    """The name that a chain of calls, items and attributes begins with, or ""."""
    while isinstance(node, ast.Call | ast.Subscript | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _compares_identity(node: ast.AST, names: set[str]) -> bool:
    """Whether `is` compares something of the program with something other than a constant."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    plain = any(isinstance(side, ast.Constant) or getattr(side, "id", "") in _SINGLE for side in sides)
    is_identity = any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
    return is_identity and not plain and any(_root(side) in names for side in sides)


def _needs(nodes: list[ast.AST], unknown: set[str]) -> str:
    if unknown:
        return f"a definition of {', '.join(sorted(unknown))} in the tests, or its name in functions"
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    functions = [n for tree in nodes if isinstance(tree, ast.Module) for n in tree.body if isinstance(n, FUNCTIONS)]
    tests = {n.name for n in functions if n.name == "check" or n.name.startswith("test")}
    if uncalled := sorted(tests - names):
        return f"a call of {uncalled[0]}, which the tests define and do not use"
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    imported = _imported(nodes)
    used = {a.attr for a in attributes if a.attr != "compile" or _root(a) not in {"re", "regex"}}
    if runs := sorted((names | imported | used) & _RUNS_TEXT):
        return f"together=True, because the tests use {runs[0]}, which may run what the program returns"
    if shared := sorted((names | imported | used) & _SHARED):
        return f"together=True, because the tests use {shared[0]}, of which the program has its own"
    if any(isinstance(n, ast.TryStar) or (isinstance(n, ast.keyword) and n.arg == "record") for n in nodes):
        return "together=True, because the tests catch groups of exceptions or record warnings"
    stored = {_root(a) for a in attributes if isinstance(a.ctx, ast.Store) and isinstance(a.value, ast.Name)}
    if "mock" in imported or stored & sys.stdlib_module_names:
        return "together=True, because the tests patch objects"
    return ""


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Parts of the names of all modules that the suite imports, and what it imports from them."""
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    paths = [alias.name for node in imports for alias in node.names]
    paths += [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    return {part for path in paths for part in path.split(".")}


def _results(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """Variables to which the suite assigns what it gets from the program."""
    variables: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _uses(node.value, names | variables):
            variables |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return variables - names


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))
