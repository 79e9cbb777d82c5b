"""Finds the program in a completion: its fenced blocks, and the one that is meant."""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from lfpo.sandbox import Limits
from lfpo.sandbox.suite import missing_names
from lfpo.sandbox.syntax import syntax_tree

MAX_CHARS = Limits().program_chars
_TAGS = {"", "python", "python3", "py", "py3"}
_ENDS = 8
"""Fences at which a block is tried to end, because a docstring may contain some."""
_INVISIBLE = {ord(c): None for c in "\ufeff\u200b\u200c\u200d\u2060"} | {ord(c): " " for c in "\u00a0\u2007\u202f"}
_SPACES = "".join(map(chr, _INVISIBLE))
_INDENTATION = re.compile(rf"^[ \t]*+[{_SPACES}][ \t{_SPACES}]*+", re.MULTILINE)
_MARGIN = re.compile(r"[ \t]*+(?:(?:>|[-*+]|\d{1,3}[.)])[ \t]*+)*+")  # of a quotation or a list
_FENCE = re.compile(rf"{_MARGIN.pattern}(`{{3,}}+|~{{3,}}+)[ \t]*+(\w*+)(?!.*```)")
_RUN = re.compile(r"`{3,}+")
_AFTER = re.compile(r"[ \t]*+\w*+(?:[ \t\r]*+(?:</\w+>)?+)*+$")
_ONE_LINE = re.compile(r"`{3,}+py(?:thon)?3?[ \t]+(?=\S)")
_DEFINITION = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)
_OWN_SCOPE = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def extract_code(completion: str, *names: str) -> str:
    """The last fenced Python block that defines one of the names and parses, with what it or the tests use from earlier
    blocks; else the last one that defines a name, else the first block, else the whole completion. Where no block
    defines a name, one that binds it in another way counts.

    Without names: the last block that defines a function or class, else the last that parses. A fence that is never
    closed ends with the text, so a truncated answer still counts. A block is read without the margin of its fence. A
    completion longer than MAX_CHARS is not searched; it scores 0.
    """
    if len(completion) > MAX_CHARS:
        return completion
    completion = plain_indentation(completion)
    lines = fence_lines(completion)
    places = [(begin, end) for tag, begin, end in fenced_blocks(lines) if tag.lower() in _TAGS]
    if not places:
        return completion
    blocks = [block(lines, *place) for place in places]
    wanted = {*names} - {""}
    # A test file imports the name, and a decorator binds it again.
    written = [(number, code) for number, code in enumerate(blocks) if code.strip()]
    of_each = ([n for n, code in written if not wanted or wanted & names(code)] for names in (defined, bound))
    candidates = next(filter(None, of_each), [])
    programs = []
    for number in reversed(candidates[-_ENDS:]):
        if code := _whole(lines, *places[number]):
            programs.append(_with_earlier(code, blocks[:number], wanted))
            if wanted or _DEFINITION.search(code):
                return programs[-1]
    return programs[0] if programs else blocks[candidates[-1] if wanted and candidates else 0]


def plain_indentation(text: str) -> str:
    """The text with spaces for no-break spaces, and nothing for invisible characters, at the beginnings of lines."""
    return _INDENTATION.sub(lambda match: match[0].translate(_INVISIBLE), text)


def _whole(lines: Sequence[str], begin: int, end: int) -> str:
    """The block up to the first of the next fences, or its own end, at which it parses, or ""."""
    fence = _FENCE.match(lines[begin - 1])
    ends = [n for n in range(begin, len(lines)) if _closes(lines[n], fence)] if fence else []
    return next((code for stop in [*ends[:_ENDS], end] if parses(code := block(lines, begin, stop))), "")


def _with_earlier(code: str, earlier: Sequence[str], wanted: Collection[str]) -> str:
    """The code after the earlier blocks that define a name which it uses, or which is wanted, and it does not define.
    Earlier forms of what it defines are drafts."""
    missing = (missing_names(ast.walk(ast.parse(code))) | {*wanted}) - bound(code)
    helpers = []
    for block in earlier[:_ENDS]:
        names = bound(block)
        if names & missing and (not names & {*wanted} or names & missing & {*wanted}):
            helpers.append(block)
    return "\n".join([*filter(parses, helpers), code])


def fence_lines(text: str) -> list[str]:
    """The lines of a text with their ends, cut in two before a fence that follows other text: `Here: ```python`, or
    `return 1```` at the end of a block. Together they are the text."""
    *lines, last = text.split("\n")
    return [part for line in (*(f"{line}\n" for line in lines), last) for part in _cut(line)]


def _cut(line: str) -> list[str]:
    runs = [match.span() for match in _RUN.finditer(line)]
    if not runs or not _AFTER.match(line, runs[-1][1]):
        return [line]
    start, stop = runs[0][0], runs[-1][0]
    if len(runs) == 2 and (opening := _ONE_LINE.match(line, start)):
        return [line[:start], opening[0], line[opening.end() : stop], line[stop:]]
    if len(runs) % 2 == 0 or _FENCE.match(line):  # an even number are spans of code in a sentence
        return [line]
    return [line[:stop], line[stop:]]


def fenced_blocks(lines: Sequence[str]) -> list[tuple[str, int, int]]:
    """Tag of each fenced block among fence_lines, its first line, and the line of the fence that ends it, or the number
    of lines where it lacks one. A fence with Python's tag also begins a block where the one before is not ended. Takes
    time linear in the text."""
    blocks: list[tuple[str, int, int]] = []
    opened, begin = None, 0
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if opened is not None and _closes(line, opened):
            blocks.append((opened[2], begin, number))
            opened = None
            fence = fence if fence and fence[2].lower() in _TAGS - {""} else None
        if opened is None and fence and number + 1 < len(lines):
            opened, begin = fence, number + 1
    return [*blocks, (opened[2], begin, len(lines))] if opened is not None else blocks


def _closes(line: str, opened: re.Match[str]) -> bool:
    """Whether a line ends the block that a fence has opened."""
    fence = _FENCE.match(line)
    return fence is not None and fence[1][0] == opened[1][0]


def block(lines: Sequence[str], begin: int, end: int) -> str:
    """The lines of a block, without the marks of a quotation and the indentation before its fence."""
    follows = begin > 1 and not lines[begin - 2].endswith("\n")
    margin = _MARGIN.match(lines[begin - 2 if follows else begin - 1])
    width, quoted = (len(margin[0]), margin[0].count(">")) if margin else (0, 0)
    marks = re.compile(rf"(?: {{0,3}}> ?){{0,{quoted}}}" if quoted else rf"[ \t]{{0,{width}}}")
    return "".join(marks.sub("", line, count=1) for line in lines[begin:end])


def bound(code: str) -> set[str]:
    """Names that the module defines in any way, but not in a function or class; of text that is not Python, those of
    the definitions that begin in it."""

    def look(node: ast.AST) -> tuple[set[str], Iterable[ast.AST]]:
        if isinstance(node, ast.alias):
            return {node.asname or node.name.partition(".")[0]}, ()
        names = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
        return names, () if isinstance(node, _OWN_SCOPE) else ast.iter_child_nodes(node)

    return _names(code, look)


def defined(code: str) -> set[str]:
    """Names that the module defines by `def`, `class`, `import ... as` or an assignment of something else than the name
    itself; of text that is not Python as `bound`."""

    def look(node: ast.AST) -> tuple[set[str], Iterable[ast.AST]]:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            parts: list[ast.AST] = [node]
            for part in parts:  # grows; a lambda may call itself
                parts += [] if isinstance(part, ast.Lambda) else ast.iter_child_nodes(part)
            found = [part for part in parts if isinstance(part, ast.Name)]
            read = {name.id for name in found if isinstance(name.ctx, ast.Load)}
            return {name.id for name in found if isinstance(name.ctx, ast.Store)} - read, ()
        if isinstance(node, ast.Import | ast.ImportFrom):
            return {alias.asname for alias in node.names if alias.asname and alias.asname != alias.name}, ()
        return set(), (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.ExceptHandler))

    return _names(code, look)


def _names(code: str, look: Callable[[ast.AST], tuple[set[str], Iterable[ast.AST]]]) -> set[str]:
    """Names of the module's functions and classes, and those that `look` finds in other nodes: it gives the names of a
    node, and the nodes in it to look at."""
    try:
        todo: list[ast.AST] = [syntax_tree(code)]
    except ValueError:
        return {*_DEFINITION.findall(code)}
    names = set[str]()
    for node in todo:  # grows
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        else:
            found, inside = look(node)
            names |= found
            todo += inside
    return names


def parses(code: str) -> bool:
    """Whether the code is Python with at least one statement. Nothing is run."""
    if not code.strip() or len(code) > MAX_CHARS:
        return False
    try:
        return bool(syntax_tree(code).body)
    except ValueError:
        return False
