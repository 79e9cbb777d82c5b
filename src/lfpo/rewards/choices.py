"""Multiple choice: the marked answer must be one letter."""

from __future__ import annotations

import re
from typing import Any

from lfpo.rewards.answers import completion_text, marked_answer
from lfpo.rewards.latex import unwrapped, without_introduction

_LETTER = re.compile(r"(?:\\(?:text|mathrm|textbf)\{|\*\*)?\(?([A-Z])\)?\}?[.:)]?(?:\*\*)?(?:\s+(.*))?", re.DOTALL)
MAX_CHARS = 2_000


def choice_accuracy(
    prompts: Any, completions: list[Any], answer: list[str], options: list[list[str]], **columns: Any
) -> list[float]:
    """1 where the marked answer is the correct letter, alone or followed by the text of that option; else 0."""
    chosen = [chosen_letter(completion_text(c), o) for c, o in zip(completions, options, strict=True)]
    return [float(letter == gold) for letter, gold in zip(chosen, answer, strict=True)]


def chosen_letter(text: str, options: list[str]) -> str | None:
    """The letter in the marked answer: `B`, `(B)`, `B.` or `B) text of option B`. None for anything else."""
    answer = marked_answer(text)
    found = _LETTER.fullmatch(without_introduction(unwrapped(answer[:MAX_CHARS]))) if answer else None
    if found is None or ord(found[1]) - ord("A") >= len(options):
        return None
    if found[2] is not None and _words(found[2]) != _words(options[ord(found[1]) - ord("A")]):
        return None
    return found[1]


def _words(text: str) -> list[str]:
    return text.casefold().strip(" .").split()
