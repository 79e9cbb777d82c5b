"""Multiple choice: the marked answer must be one letter."""

import re

from lfpo.rewards.answers import marked_answer
from lfpo.rewards.each import each
from lfpo.rewards.latex import unwrapped

_LETTER = re.compile(r"(?:\\(?:text|mathrm|textbf)\{|\*\*)?\(?([A-Z])\)?\}?[.:)]?(?:\*\*)?(?:\s+(.*))?", re.DOTALL)
MAX_CHARS = 2_000


@each
def choice_accuracy(text: str, answer: str, options: list[str]) -> float:
    """1 where the marked answer is the correct letter: `B`, `(B)`, `B.` or `B) text of option B`; else 0."""
    marked = marked_answer(text)
    match = _LETTER.fullmatch(unwrapped(marked[:MAX_CHARS])) if marked else None
    if match is None or match[1] != answer:
        return False
    return match[2] is None or _words(match[2]) == _words(options[ord(answer) - ord("A")])


def _words(text: str) -> list[str]:
    return text.casefold().strip(" .").split()
