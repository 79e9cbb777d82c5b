"""The graded reward of a regime of DESIGN.md."""

from typing import Any


def right_cells(prompts: list[str], completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """The share of a Sudoku's cells that are right."""
    pairs = zip(completions, solution, strict=True)
    return [sum(a == b for a, b in zip(text.strip(), right, strict=False)) / len(right) for text, right in pairs]
