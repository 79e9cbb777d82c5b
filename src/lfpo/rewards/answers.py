"""Extracts the marked answer of a completion: its last `<answer>` tag, `\\boxed{}` or `#### ` line."""

import re
from typing import Any

MAX_BARE = 100  # characters of a box without braces
TAIL_CHARS = 20_000  # only the end of a completion is searched, which bounds the time for a huge one


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
    text = text[-TAIL_CHARS:]
    marks = [mark for mark in (_tagged(text), _boxed(text), _after_hashes(text)) if mark is not None]
    if not marks:
        return None
    answer = max(marks)[-1].strip()
    inner = [mark for mark in (_boxed(answer), _after_hashes(answer)) if mark is not None]
    if not inner:
        return answer
    _, start, end, _ = max(inner)
    beside = answer[:start].rpartition("\n")[2] + " " + answer[end:].partition("\n")[0]
    return marked_answer(answer) if _BESIDE.fullmatch(beside) and not _JOINS.search(beside) else answer


# Words and delimiters, but no number, sign or command.
_BESIDE = re.compile(r"(?:[A-Za-z\s:;.!'$*}]|\\[()\[\],;! ]|[A-Za-z]\s*=|\\text\{)*")
_JOINS = re.compile(r"\b(?:and|or|nor|not|no|minus|negative|times|half|percent)\b")


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` or `\\fbox{...}`, with balanced braces; `\\boxed 7` ends at a space. Boxes
    that a comma, `and` or `or` joins are one list."""
    mark = _boxed(text[-TAIL_CHARS:])
    return None if mark is None else mark[-1].strip()


Mark = tuple[int, int, int, str]  # its place among marks of all kinds, where it begins and ends, and its content


def _tagged(text: str) -> Mark | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    return end, start, end, text[start + len("<answer>") : end].partition("</answer>")[0]


_BOX = re.compile(r"\\[bf](?:oxed|box)(?![A-Za-z])\s*+")
_BETWEEN = re.compile(r"[\s$]*+(?:,|\\text\{\s*(?:and|or)\s*\}|and|or)[\s$]*+")


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
                found.append((end - 1, match.start(), end, text[start + 1 : end - 1]))
        elif content := re.match(r"[^\s${}]+", text[start : start + MAX_BARE]):
            end = start + len(content[0])
            found.append((end - 1, match.start(), end, content[0]))
    first = len(found) - 1
    while first > 0 and _BETWEEN.fullmatch(text[found[first - 1][2] : found[first][1]]):
        first -= 1
    return (end - 1, found[first][1], end, ", ".join(mark[-1] for mark in found[first:])) if found else None


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


_HASHES = re.compile(r"(?<!#)####(?!#)(.*)")
_HEADING = re.compile(r"[*\s]*[A-Za-z][A-Za-z :*]*")


def _after_hashes(text: str) -> Mark | None:
    """The rest of the last line with `####`; words with text below are a heading, which Markdown marks alike."""
    for match in reversed(list(_HASHES.finditer(text))):
        if not _HEADING.fullmatch(match[1]) or not text[match.end() :].strip():
            return match.start(1), match.start(), match.end(), match[1]
    return None
