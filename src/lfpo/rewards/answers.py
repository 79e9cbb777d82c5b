"""Extracts the marked answer of a completion: its last `<answer>` tag, `\\boxed{}` or `#### ` line."""

from typing import Any

TAIL_CHARS = 20_000  # only the end of a completion is searched, which bounds the time for a huge one
BOXES = ("\\boxed", "\\fbox")


def completion_text(completion: Any) -> str:
    """The text of a completion; for a conversational one (TRL's list of messages), the last message's content."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def prompt_text(prompt: Any) -> str:
    """A prompt as text; messages with their roles."""
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def marked_answer(text: str) -> str | None:
    """The last marked answer of a completion, stripped, or None if there is none.

    Marks are `<answer>...</answer>`, `\\boxed{...}` and `#### ...` up to the end of the line. Only the last one counts,
    so that naming several answers gains nothing. A mark inside another (`<answer>\\boxed{7}</answer>`) is unwrapped. A
    mark that is never closed is ignored.
    """
    text = text[-TAIL_CHARS:]
    marks = [mark for mark in (_tagged(text), _boxed(text), _after_hashes(text)) if mark is not None]
    if not marks:
        return None
    answer = max(marks)[1].strip()
    inner = marked_answer(answer) if any(mark in answer for mark in (*BOXES, "####")) else None
    return answer if inner is None else inner


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` or `\\fbox{...}`, with balanced braces; `\\boxed 7` ends at a space."""
    mark = _boxed(text[-TAIL_CHARS:])
    return None if mark is None else mark[1].strip()


def _tagged(text: str) -> tuple[int, str] | None:
    """(index where the tag ends, its content)."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else (end, text[start + len("<answer>") : end])


def _boxed(text: str) -> tuple[int, str] | None:
    """(index where the box ends, its content)."""
    mark = max(BOXES, key=text.rfind)
    start = text.rfind(mark)
    if start < 0:
        return None
    start += len(mark)
    if text[start : start + 1] == " ":
        content = text[start + 1 :].split("$")[0].split()[:1]
        return (start + 1 + len(content[0]), content[0]) if content and "{" not in content[0] else None
    end = closing_brace(text, start)
    return None if end is None else (end, text[start + 1 : end])


def closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`, or None."""
    depth = 0
    for i in range(start, len(text)):
        escaped = i > 0 and text[i - 1] == "\\"
        if text[i] == "{" and not escaped:
            depth += 1
        elif text[i] == "}" and not escaped:
            depth -= 1
        if depth == 0:
            return i if i > start else None
    return None


def _after_hashes(text: str) -> tuple[int, str] | None:
    """(index where the content starts, the rest of the line)."""
    start = text.rfind("####")
    if start < 0:
        return None
    start += 4
    return start, text[start:].split("\n", 1)[0]
