"""Rewrites a suite's comparisons, so that an empty or smaller array cannot pass by numpy's broadcasting (strict.py)."""

from __future__ import annotations

import ast

_OPERATORS: dict[type, str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Sub: "sub",
    ast.Add: "add",
    ast.Mult: "mul",
    ast.Div: "truediv",
}
_COMPARISONS = {
    *("allclose", "isclose", "array_equiv", "equal", "not_equal", "subtract", "assert_allclose", "assert_equal"),
    *("assert_almost_equal", "assert_approx_equal", "assert_array_almost_equal", "assert_array_equal"),
    *("assert_array_less", "less", "less_equal", "greater", "greater_equal", "logical_and", "add", "divide"),
}
_METHODS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "sub": "sub", "__eq__": "eq"}


def called(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a call of one of these functions, also awaited."""
    node = node.value if isinstance(node, ast.Await) else node
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def results(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """Variables to which the suite assigns what it gets from the program."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _of_program(node.value, names, found):
            found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.FunctionDef) and any(_of_program(d, names, found) for d in node.decorator_list):
            found.add(node.name)
    return found - names


def _of_program(node: ast.AST, names: set[str], found: set[str]) -> bool:
    return any(called(n, names) or (isinstance(n, ast.Name) and n.id in found | names) for n in ast.walk(node))


class Guards(ast.NodeTransformer):
    """names: functions of the program. found: variables that hold what the program gave."""

    def __init__(self, names: set[str], found: set[str]) -> None:
        self.names, self.found = names, found

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 or type(node.ops[0]) not in _OPERATORS:
            return node
        return self._operate(type(node.ops[0]), node.left, node.comparators[0], node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return self._operate(type(node.op), node.left, node.right, node) if type(node.op) in _OPERATORS else node

    def _operate(self, operator: type, left: ast.expr, right: ast.expr, node: ast.AST) -> ast.AST:
        if any(isinstance(side, ast.Constant) and isinstance(side.value, str | bytes | None) for side in (left, right)):
            return node
        return _call("__operate__", ast.Constant(_OPERATORS[operator]), left, right)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _METHODS and isinstance(node.func, ast.Attribute) and len(node.args) == 1 and not node.keywords:
            self.generic_visit(node)
            return _call("__operate__", ast.Constant(_METHODS[name]), node.func.value, node.args[0])
        if name in _COMPARISONS:
            sides = [_of_program(part, self.names, self.found) for part in (*node.args, *node.keywords)][:2]
            side = "first" if sides == [True, False] else "second" if sides == [False, True] else ""
            self.generic_visit(node)
            node.func = _call("__comparison__", node.func, ast.Constant(side))
            return node
        self.generic_visit(node)
        return node


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])
