"""Checks an objective's settings without importing its file, and so without loading torch.

Of the file's text only the dataclass with its fields and its `__post_init__` is executed, and the imports and constants
that these name.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any, cast

from lfpo.base.config import build
from lfpo.base.plugins import dotted, resolve
from lfpo.objectives import OBJECTIVES, knobs_of


def check_settings(settings: dict[str, Any]) -> None:
    """Raise the UserError that `make_objective(settings)` would raise for a wrong name, key or value.

    An own objective by dotted path is checked too where it is written like those of this package, with all its fields
    in one dataclass; any other one is checked when it is made.
    """
    name, knobs = knobs_of(settings)
    module, attribute = dotted(name, OBJECTIVES, kind="objective")
    if module in sys.modules:
        return  # make_objective costs nothing then
    if name not in OBJECTIVES and importlib.util.find_spec(module.partition(".")[0]) is None:
        resolve(name, OBJECTIVES, kind="objective")  # raises for a module that does not exist
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return
    cls = settings_class(Path(spec.origin), attribute, module.rpartition(".")[0])
    if cls is not None:
        build(cast(Any, cls), knobs, "objective")


def settings_class(file: Path, name: str, package: str = "") -> type | None:
    """A dataclass with the fields and `__post_init__` of the class `name` in a Python file of a package; None where the
    file has no such dataclass, or the dataclass has base classes, or its `__post_init__` reads more of `self` than
    fields and constants."""
    statements = ast.parse(file.read_text(encoding="utf-8"), str(file)).body
    found = next((s for s in statements if isinstance(s, ast.ClassDef) and s.name == name), None)
    if found is None or found.bases or not any("dataclass" in ast.unparse(d) for d in found.decorator_list):
        return None
    fields = [s for s in found.body if isinstance(s, ast.AnnAssign | ast.Assign)]
    found.body = [*fields, *(s for s in found.body if _is_post_init(s))]
    if _read_of_self(found) - set().union(*map(_bound, fields)):
        return None
    kept: list[ast.stmt] = [found]
    wanted, before = _names(found), statements[: statements.index(found)]
    for statement in reversed(before):
        if isinstance(statement, ast.Import | ast.ImportFrom) and getattr(statement, "module", "") != "__future__":
            # Without the future import annotations are evaluated here, where their names are known.
            statement.names = [a for a in statement.names if (a.asname or a.name).partition(".")[0] in wanted]
            kept = [statement, *kept] if statement.names else kept
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.FunctionDef) and _bound(statement) & wanted:
            wanted |= _names(statement)
            kept = [statement, *kept]
    namespace: dict[str, Any] = {"__name__": f"settings of {file.stem}", "__package__": package}
    code = compile(ast.Module(kept, type_ignores=[]), str(file), "exec", dont_inherit=True)
    exec(code, namespace)
    return cast(type, namespace[name])


def _is_post_init(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and statement.name == "__post_init__"


def _read_of_self(statement: ast.stmt) -> set[str]:
    """The attributes of `self` that a statement reads."""
    found = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "self"}


def _names(statement: ast.stmt) -> set[str]:
    """The names that a statement reads."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _bound(statement: ast.Assign | ast.AnnAssign | ast.FunctionDef) -> set[str]:
    """The names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}
