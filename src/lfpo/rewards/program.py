"""Finds the program in a completion: the fenced block that is meant."""

import ast
import re

from lfpo.sandbox import Limits
from lfpo.sandbox.syntax import syntax_tree

MAX_CHARS = Limits().program_chars
_TAGS = {"", "python", "python3", "py", "py3"}
# A fence may follow text in its line (`Here: ```python`) and ends wherever it stands again. One with Python's tag
# begins a block also where the block before it is never ended. Takes time linear in the text.
_BLOCK = re.compile(
    r"(?<![`~])(`{3,}+|~{3,}+)[ \t]*+(\w*+)[ \t\r]*+\n(.*?)(?:(?=\1[ \t]*+py\w*+[ \t\r]*+\n)|\1|\Z)", re.DOTALL
)
_DEFINITION = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def extract_code(completion: str, *names: str) -> str:
    """The last fenced Python block that defines one of the names and parses, else the last that defines one, else the
    first block, else the whole completion.

    Without names: the last block that defines a function or class and parses, else the last that parses. A fence that
    is never closed ends with the text, so a truncated answer still counts. A completion longer than MAX_CHARS is not
    searched; it scores 0.
    """
    if len(completion) > MAX_CHARS:
        return completion
    blocks = [code for tag, code in fenced_blocks(completion) if tag.lower() in _TAGS]
    wanted = {*names} - {""}
    # A later block may only show how the program is used, an earlier one may be a draft.
    defining = [code for code in blocks if (wanted & defined(code) if wanted else _DEFINITION.search(code))]
    programs = [code for code in defining or blocks if parses(code)] if defining or not wanted else []
    return (programs[-1:] or defining[-1:] or blocks[:1] or [completion])[0]


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Tag and content of each fenced block. The lines of a block in a list lose the indentation of the fence that ends
    it."""
    found = []
    for _, tag, code in _BLOCK.findall(text):
        margin = code.rpartition("\n")[2]
        if margin and not margin.strip():
            code = re.sub(rf"^[ \t]{{0,{len(margin)}}}", "", code, flags=re.MULTILINE)
        found.append((tag, code))
    return found


def defined(code: str) -> set[str]:
    """Names that the top level of a module defines by `def`, `class` or an assignment; of text that is not Python those
    of the definitions that begin in it."""
    try:
        body = syntax_tree(code).body
    except ValueError:
        return {*_DEFINITION.findall(code)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    assigned = {target.id for target in targets if isinstance(target, ast.Name)}
    return assigned | {node.name for node in body if isinstance(node, _DEFINES)}


def parses(code: str) -> bool:
    """Whether the code is Python with at least one statement. Nothing is run."""
    if not code.strip() or len(code) > MAX_CHARS:
        return False
    try:
        return bool(syntax_tree(code).body)
    except ValueError:
        return False
