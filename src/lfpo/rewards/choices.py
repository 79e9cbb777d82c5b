"""Multiple choice: the marked answer must be one letter."""

import re

from lfpo.rewards.answers import marked_answer
from lfpo.rewards.each import each
from lfpo.rewards.latex import unwrapped

_LETTER = re.compile(r"(?:\\(?:text|mathrm|textbf)\{|\*\*)?\(?([A-Z])\)?\}?[.:)]?(?:\*\*)?(?:\s+(.*))?", re.DOTALL)
MAX_CHARS = 2_000


@each
def choice_accuracy(text: str, answer: str, options: list[str]) -> float:
    """1 where the marked answer is the correct letter, alone or followed by the text of that option; else 0."""
    return chosen_letter(text, options) == answer


def chosen_letter(text: str, options: list[str]) -> str | None:
    """The letter in the marked answer: `B`, `(B)`, `B.` or `B) text of option B`. None for anything else."""
    answer = marked_answer(text)
    found = _LETTER.fullmatch(unwrapped(answer[:MAX_CHARS])) if answer else None
    if found is None or ord(found[1]) - ord("A") >= len(options):
        return None
    if found[2] is not None and _words(found[2]) != _words(options[ord(found[1]) - ord("A")]):
        return None
    return found[1]


def _words(text: str) -> list[str]:
    return text.casefold().strip(" .").split()
