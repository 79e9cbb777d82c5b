"""Prompts of an evaluation: chat messages or plain text, with solved examples before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lfpo.base.rng import python_rng
from lfpo.prompts.tasks import Row

EXAMPLE_SEED = 0  # not the evaluation's seed: the examples are part of the prompt
Prompt = str | list[dict[str, str]]


def examples(task: Any, n: int) -> list[tuple[Row, str]]:
    """The first n rows of the task's shuffled train split, each with a right completion."""
    rows = [task.row("train", i, EXAMPLE_SEED) for i in range(n)]
    return [(row, task.demonstrate(row, python_rng("fewshot", task.name, i), 1.0)) for i, row in enumerate(rows)]


def asked(rows: Sequence[Row], solved: Sequence[tuple[Row, str]], prompt_format: str) -> list[Row]:
    """The rows with solved examples before their prompts. prompt_format: "chat" or "text".

    In "chat" examples are turns of the conversation; in "text" they are paragraphs. Prompts that are strings are
    always treated as text.
    """
    return [{**row, "prompt": _prompt(row["prompt"], solved, prompt_format)} for row in rows]


def _prompt(prompt: Prompt, solved: Sequence[tuple[Row, str]], prompt_format: str) -> Prompt:
    if isinstance(prompt, str) or prompt_format == "text":
        before = "".join(f"{_opened(row['prompt'])}{solution}\n\n" for row, solution in solved)
        return before + _opened(prompt)
    turns = []
    for row, solution in solved:
        turns += [*row["prompt"], {"role": "assistant", "content": solution}]
    return [*turns, *prompt]


def _opened(prompt: Prompt) -> str:
    """A prompt as plain text. Messages become paragraphs, followed by a line break."""
    return prompt if isinstance(prompt, str) else "\n\n".join(m["content"] for m in prompt) + "\n"


def stop_text(rows: Sequence[Row], solved: Sequence[tuple[Row, str]], prompt_format: str) -> str | None:
    """The text at which a plain-text completion is cut, since the model then goes on to a further problem: the first
    line of all problems, if they share one. None for chat messages and without examples."""
    every = [*rows, *(row for row, _ in solved)]
    if not solved or (prompt_format == "chat" and not isinstance(rows[0]["prompt"], str)):
        return None
    first = {_opened(row["prompt"]).split("\n", 1)[0] for row in every}
    return f"\n\n{first.pop()}" if len(first) == 1 and "" not in first else None


def cut(completion: str, stop: str | None) -> str:
    """The completion up to the stop text."""
    return completion if stop is None else completion.split(stop, 1)[0]
