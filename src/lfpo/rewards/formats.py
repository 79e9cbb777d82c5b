"""Format rewards: whether a completion has the requested format, whatever its answer.

All are 1 or 0 except d1's (arXiv 2504.12216), and are scaled by `reward_weights`. Tags are found by string search, not
by regular expressions, so the time is linear in the length of the completion.
"""

from __future__ import annotations

from typing import Any

from lfpo.rewards.answers import completion_text, last_boxed, marked_answer
from lfpo.rewards.numbers import to_number

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
TRAILING_COST = 0.001  # d1: for each character after the closing tag


def tag_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """1 for `<reasoning>...</reasoning><answer>...</answer>` and nothing else, each tag once, the answer not empty."""
    return [float(_is_tagged(completion_text(c))) for c in completions]


def answer_tag_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """1 for exactly one `<answer>...</answer>`, not empty."""
    return [float(_has_answer(completion_text(c))) for c in completions]


def reasoning_tag_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """1 for exactly one `<reasoning>...</reasoning>`."""
    return [float(_once_in_order(completion_text(c), TAGS[:2])) for c in completions]


def boxed_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """1 for a `\\boxed{}` that is closed and not empty."""
    return [float(bool(last_boxed(completion_text(c)))) for c in completions]


def xml_count(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """d1: 1/8 for each tag that occurs once on a line of its own, minus 0.001 for each character after the last tag.

    d1's code subtracts the trailing characters twice. The first time it searches for a string with a final newline; in
    a completion without one it subtracts the length of the whole completion. Here they are subtracted once.
    """
    return [_xml_count(completion_text(c)) for c in completions]


def soft_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """d1: 1/2 for the two tagged parts in order at the start.

    d1's regular expression lacks DOTALL and misses reasoning of several lines; this one accepts it.
    """
    return [0.5 * _starts_tagged(completion_text(c)) for c in completions]


def strict_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """d1: 1/2 for the two tagged parts and nothing else, with each tag on a line of its own."""
    return [0.5 * _is_strict(completion_text(c)) for c in completions]


def integer_answer(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """d1: 1/2 for a tagged answer that is an integer. Commas and a minus sign are allowed, unlike in d1."""
    return [0.5 * _is_integer(completion_text(c)) for c in completions]


def boxed_tag_format(prompts: Any, completions: list[Any], **columns: Any) -> list[float]:
    """d1 on MATH: 1 for a box in an answer tag, 0.75 for the tag alone, 0.5 for a box alone, 0.25 for neither.

    These are the values of d1's paper. Its code searches for a backspace followed by `oxed` (an unescaped `\\b`), so
    it gives only 0.75 or 0.25.
    """
    values = []
    for text in map(completion_text, completions):
        box = 1.0 if last_boxed(text) else 0.5
        values.append(0.5 * (_has_answer(text) + box))
    return values


def _once_in_order(text: str, tags: tuple[str, ...]) -> bool:
    starts = [text.find(tag) for tag in tags]
    return all(text.count(tag) == 1 for tag in tags) and starts == sorted(starts)


def _has_answer(text: str) -> bool:
    return _once_in_order(text, TAGS[2:]) and bool(text.partition("<answer>")[2].partition("</answer>")[0].strip())


def _starts_tagged(text: str) -> bool:
    """Whether the tagged parts are in order, with only white space before and between them."""
    between = text.partition("</reasoning>")[2].partition("<answer>")[0]
    return _once_in_order(text, TAGS) and text.lstrip().startswith(TAGS[0]) and not between.strip()


def _is_tagged(text: str) -> bool:
    return _starts_tagged(text) and text.rstrip().endswith(TAGS[3]) and _has_answer(text)


def _is_strict(text: str) -> bool:
    lines = text.strip().split("\n")
    return _is_tagged(text) and all(tag in lines for tag in TAGS)


def _is_integer(text: str) -> bool:
    value = to_number(marked_answer(text) or "") if _has_answer(text) else None
    return value is not None and value.denominator == 1


def _xml_count(text: str) -> float:
    lines = text.split("\n")
    value = 0.125 * sum(lines.count(tag) == 1 for tag in TAGS)
    if TAGS[3] in lines:
        value -= TRAILING_COST * len(text.rpartition(TAGS[3])[2].strip())
    return value
