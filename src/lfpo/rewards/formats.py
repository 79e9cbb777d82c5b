"""Format rewards: whether a completion has the requested format, whatever its answer.

All are 1 or 0 except d1's (arXiv 2504.12216), and are scaled by `reward_weights`. Tags are found by string search, not
by regular expressions, so the time is linear in the length of the completion.
"""

from lfpo.rewards.answers import last_boxed, marked_answer
from lfpo.rewards.each import each
from lfpo.rewards.numbers import to_number

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
TRAILING_COST = 0.001  # d1: for each character after the closing tag


@each
def tag_format(text: str) -> float:
    """1 for `<reasoning>...</reasoning><answer>...</answer>` and nothing else, each tag once, the answer not empty."""
    return _is_tagged(text)


@each
def answer_tag_format(text: str) -> float:
    """1 for exactly one `<answer>...</answer>`, not empty."""
    return _has_answer(text)


@each
def reasoning_tag_format(text: str) -> float:
    """1 for exactly one `<reasoning>...</reasoning>`."""
    return _once_in_order(text, TAGS[:2])


@each
def xml_count(text: str) -> float:
    """d1: 1/8 for each tag that occurs once on a line of its own, minus 0.001 for each character after the last tag.

    d1's code subtracts the trailing characters twice. The first time it searches for a string with a final newline; in
    a completion without one it subtracts the length of the whole completion. Here they are subtracted once.
    """
    lines = text.split("\n")
    value = 0.125 * sum(lines.count(tag) == 1 for tag in TAGS)
    trailing = text.rpartition(TAGS[3])[2].strip() if TAGS[3] in lines else ""
    return value - TRAILING_COST * len(trailing)


@each
def soft_format(text: str) -> float:
    """d1: 1/2 for the two tagged parts in order at the start.

    d1's regular expression lacks DOTALL and misses reasoning of several lines; this one accepts it.
    """
    return 0.5 * _starts_tagged(text)


@each
def strict_format(text: str) -> float:
    """d1: 1/2 for the two tagged parts and nothing else, with each tag on a line of its own."""
    lines = text.strip().split("\n")
    return 0.5 * (_is_tagged(text) and all(tag in lines for tag in TAGS))


@each
def integer_answer(text: str) -> float:
    """d1: 1/2 for a tagged answer that is an integer. Commas and a minus sign are allowed, unlike in d1."""
    value = to_number(marked_answer(text) or "") if _has_answer(text) else None
    return 0.5 * (value is not None and value.denominator == 1)


@each
def boxed_tag_format(text: str) -> float:
    """d1 on MATH: 1 for a box in an answer tag, 0.75 for the tag alone, 0.5 for a box alone, 0.25 for neither.

    These are the values of d1's paper. Its code searches for a backspace followed by `oxed` (an unescaped `\\b`), so
    it gives only 0.75 or 0.25.
    """
    return 0.5 * (_has_answer(text) + (1.0 if last_boxed(text) else 0.5))


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
