"""Small changes to a program, and what the tests say when they are run as a plain script, without any sandbox."""

import ast
import copy
import multiprocessing
import os
import sys
import tempfile
import types
from typing import Any

SWAPS: dict[type, ast.AST] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Add(),
    ast.Lt: ast.GtE(),
    ast.LtE: ast.Gt(),
    ast.Gt: ast.LtE(),
    ast.GtE: ast.Lt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.And: ast.Or(),
    ast.Or: ast.And(),
}


def mutants(program: str, most: int = 3) -> list[str]:
    """Programs with one change each: an operator or comparison turned round, a number off by one, no result at all."""
    tree = ast.parse(program)
    places = _places(tree)
    changed = [text for number in range(len(places)) if (text := _mutant(tree, number))]
    step = max(1, len(changed) // max(1, most - 1))
    return [_without_result(tree), *changed[::step][: most - 1]]


def _places(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """In the last function: the others may be given by the problem, and then a change to them is none."""
    walk = ast.walk(_last_function(tree))
    return [(node, field) for node in walk for field in ("op", "ops", "value") if hasattr(node, field)]


def _last_function(tree: ast.Module) -> ast.FunctionDef:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)][-1]


def _mutant(tree: ast.Module, number: int) -> str | None:
    tree = copy.deepcopy(tree)
    node, field = _places(tree)[number]
    value = getattr(node, field)
    if field == "op" and type(value) in SWAPS:
        setattr(node, field, SWAPS[type(value)])
    elif field == "ops" and type(value[0]) in SWAPS:
        value[0] = SWAPS[type(value[0])]
    elif isinstance(node, ast.Constant) and type(value) is int:
        node.value = value + 1
    else:
        return None
    return ast.unparse(tree)


def _without_result(tree: ast.Module) -> str:
    """The last function returns None."""
    tree = copy.deepcopy(tree)
    _last_function(tree).body.insert(0, ast.Return(None))
    return ast.unparse(ast.fix_missing_locations(tree))


def passes_as_a_script(program: str, row: dict[str, Any], seconds: float = 20) -> bool:
    """Whether the row's tests pass with the program in one interpreter. Only for programs known to be harmless."""
    script = "\n".join([program, row["setup"], *row["tests"]])
    if row["together"]:
        script += "\nunittest.main(argv=['tests'])\n"
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("fork").Process(target=_run, args=(script, folder))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
    return process.exitcode == 0


def _run(script: str, folder: str) -> None:
    """Run a script as the main module of this process. A fork has numpy already, which takes longest to load."""
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sys.stdin = open(0)  # noqa: SIM115
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__["__file__"] = "script.py"
    exec(compile(script, "script.py", "exec"), main.__dict__)
