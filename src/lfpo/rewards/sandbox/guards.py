"""Rewrites a suite's comparisons, so that an empty or smaller array cannot pass by numpy's broadcasting (strict.py)."""

import ast

_OPERATORS = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
_OPERATORS |= {"Sub": "sub", "Add": "add", "Mult": "mul", "Div": "truediv"}
_METHODS = {form.format(name) for name in _OPERATORS.values() for form in ("__{}__", "__i{}__")}
_METHODS |= {"eq", "ne", "lt", "le", "gt", "ge", "sub"}  # of frames and of `operator`; not `add`, which sets have
_COMPARISONS = {
    *("allclose", "isclose", "array_equiv", "equal", "not_equal", "subtract", "assert_allclose", "assert_equal"),
    *("assert_almost_equal", "assert_approx_equal", "assert_array_almost_equal", "assert_array_equal"),
    *("assert_array_less", "less", "less_equal", "greater", "greater_equal", "logical_and", "add", "divide"),
}


def called(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a call of one of these functions, also awaited."""
    node = node.value if isinstance(node, ast.Await) else node
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def results(nodes: list[ast.AST], names: set[str]) -> set[str]:
    """Variables to which the suite assigns what it gets from the program."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _uses(node.value, names | found):
            found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.FunctionDef) and any(_uses(d, names | found) for d in node.decorator_list):
            found.add(node.name)
    return found - names


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


class Guards(ast.NodeTransformer):
    """names: functions of the program, and variables that hold what they gave."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return _operation(node.ops[0], node.left, node.comparators[0], node) if len(node.ops) == 1 else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _operation(node.op, node.left, node.right, node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        name = _OPERATORS.get(type(node.op).__name__)
        if name is None or not isinstance(node.target, ast.Name):
            return node
        value = _call("__operate__", ast.Constant(f"i{name}"), ast.Name(node.target.id, ast.Load()), node.value)
        return ast.Assign([node.target], value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        sides = [_uses(part, self.names) for part in (*node.args, *node.keywords)][:2]
        self.generic_visit(node)
        if name in _METHODS and isinstance(node.func, ast.Attribute) and len(node.args) == 1 and not node.keywords:
            return _call("__operate__", ast.Constant(name.strip("_")), node.func.value, node.args[0])
        if name in _COMPARISONS or (name in _METHODS and len(node.args) == 2):
            side = "first" if sides == [True, False] else "second" if sides == [False, True] else ""
            node.func = _call("__comparison__", node.func, ast.Constant(side))
        return node


def _operation(operator: ast.AST, left: ast.expr, right: ast.expr, node: ast.AST) -> ast.AST:
    name = _OPERATORS.get(type(operator).__name__)
    plain = any(isinstance(side, ast.Constant) and isinstance(side.value, str | bytes | None) for side in (left, right))
    return node if name is None or plain else _call("__operate__", ast.Constant(name), left, right)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])
