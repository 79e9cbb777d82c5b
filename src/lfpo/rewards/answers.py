"""Extracts the marked answer of a completion: its last `<answer>` tag, `\\boxed{}` or `#### ` line."""

import re
from typing import Any

MAX_BARE = 100  # characters of a box without braces
TAIL_CHARS = 20_000  # only the end of a completion is searched, which bounds the time for a huge one
MAX_NESTED = 8  # marks inside each other that are unwrapped; text that repeats a mark may hold thousands


def completion_text(completion: Any) -> str:
    """The text of a completion; for a conversational one (TRL's list of messages), the last message's content."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def prompt_text(prompt: Any) -> str:
    """A prompt as text; messages with their roles."""
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def marked_answer(text: str) -> str | None:
    """The last marked answer of a completion, stripped, or None if there is none.

    Marks are `<answer>...</answer>`, `\\boxed{...}` and `#### ...` up to the end of the line. Only the last one counts,
    so that naming several answers gains nothing; boxes that a comma, `and` or `or` joins are one list. A mark inside
    another (`<answer>\\boxed{7}</answer>`) is unwrapped, unless what stands beside it in its line is part of the answer
    (`-\\boxed{7}`). A mark that is never closed is ignored.
    """
    text, answer = text[-TAIL_CHARS:], None
    for _ in range(MAX_NESTED):
        marks = [mark for mark in (_tagged(text), _boxed(text)) if mark is not None]
        if hashes := _after_hashes(text, headings=not marks):
            marks.append(hashes)
        if not marks:
            break
        text = answer = _last(marks)[-1].strip()
        inner = [mark for mark in (_boxed(text), _after_hashes(text, headings=True)) if mark is not None]
        if not inner or _is_changed(text, *_last(inner)[:2]):
            break
    return answer


def _is_changed(text: str, start: int, end: int) -> bool:
    """Whether what stands beside a mark in its line is part of the answer."""
    before, after = text[:start].rpartition("\n")[2], text[end:].partition("\n")[0]
    before, after = before.replace("**", "").rstrip(" $("), after.replace("**", "").lstrip(" $)")
    return bool(_BEFORE.search(before) or _AFTER.match(after))


def _last(marks: list["Mark"]) -> "Mark":
    """The mark that ends last; of two that end together the outer one."""
    return max(marks, key=lambda mark: (mark[1], -mark[0]))


# What changes the value of a mark beside it: a sign, a number or an operator, an open argument, a word.
_BEFORE = re.compile(
    r"(?:[-+*/^_0-9]|[0-9})\]]\s*,|\\(?:cdot|times|div|pm|cup)|\\(?:frac|sqrt)(?:\{[^{}]*\})?\{|"
    r"(?:^|[^A-Za-z])(?:or|and|nor|not|no|minus|negative|twice|half))$"
)
_AFTER = re.compile(
    r"\^(?!\s*\{?\s*\\circ)|[_*/+!0-9]|-\s*[\w\\]|,\s*[-\d\\]|\\(?:cdot|times|div|pm|cup)|(?:or|and)\s*[-$\d\\]|"
    r"(?:hundred|thousand|[a-z]*illion|dozen|squared|cubed|minus|plus|times)(?![a-z])"
)


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` or `\\fbox{...}`, with balanced braces; `\\boxed 7` ends at a space. Boxes
    that a comma, `and` or `or` joins are one list."""
    text, content = text[-TAIL_CHARS:], None
    for _ in range(MAX_NESTED):
        mark = _boxed(text)
        # A box inside another counts where nothing stands beside it.
        if mark is None or (content is not None and mark[:2] != (0, len(text))):
            break
        text = content = mark[-1].strip()
    return content


Mark = tuple[int, int, str]  # where it begins and ends, without a closing tag, and its content


def _tagged(text: str) -> Mark | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    return start, end, text[start + len("<answer>") : end].partition("</answer>")[0]


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*+")
_BETWEEN = re.compile(r"[\s$]*+(?:,[\s$]*+(?:and|or)?|\\text\{\s*,?\s*(?:and|or)\s*\}|and|or)[\s$]*+")


def _boxed(text: str) -> Mark | None:
    """The last box that is closed and in no other, or a list of the last ones."""
    found, braces, end = list[Mark](), closing_braces(text), 0
    for match in _BOX.finditer(text):
        start = match.end()
        if match.start() < end or start == len(text):
            continue
        if text[start] == "{":
            if start in braces:
                end = braces[start] + 1
                found.append((match.start(), end, text[start + 1 : end - 1]))
        elif content := re.match(r"[^\s${}]+", text[start : start + MAX_BARE]):
            end = start + len(content[0])
            found.append((match.start(), end, content[0]))
    first = len(found) - 1
    while first > 0 and _BETWEEN.fullmatch(text[found[first - 1][1] : found[first][0]]):
        first -= 1
    return (found[first][0], end, ", ".join(mark[-1] for mark in found[first:])) if found else None


def closing_braces(text: str) -> dict[int, int]:
    """Index of each brace that is closed -> index of the brace that closes it. `\\{` and `\\}` are none."""
    opened, closed = list[int](), dict[int, int]()
    for match in re.finditer(r"(?<!\\)[{}]", text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            closed[opened.pop()] = match.start()
    return closed


def closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`, or None."""
    return closing_braces(text).get(start)


_HASHES = re.compile(r"(?<!#)####(?!#)(.*?)(?=</answer>|$)", re.MULTILINE)
_HEADING = re.compile(r"[*\s]*[A-Za-z][A-Za-z :*]*")


def _after_hashes(text: str, headings: bool) -> Mark | None:
    """The rest of the last line with `####`. Markdown has the same mark for a heading, words with text below: one
    counts only if `headings`, and no other line does."""
    lines = list(_HASHES.finditer(text))
    answers = [line for line in lines if not _HEADING.fullmatch(line[1]) or not text[line.end() :].strip()]
    last = (answers or (lines if headings else []))[-1:]
    return next(((line.start(), line.end(), line[1]) for line in last), None)
