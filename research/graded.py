"""Graded rewards and weakened bases for the regimes of DESIGN.md."""

import argparse
from pathlib import Path
from typing import Any

import torch


def right_cells(prompts: list[str], completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """The share of a Sudoku's cells that are right."""
    pairs = zip(completions, solution, strict=True)
    return [sum(a == b for a, b in zip(text.strip(), right, strict=False)) / len(right) for text, right in pairs]


def weaken(folder: Path, noise: float, seed: int = 0) -> None:
    """Write the embedded model with noise on its matrices, `noise` times the standard deviation of each."""
    from lfpo.models import load_model, save_model

    model, generator = load_model("embedded"), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    save_model(model, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=weaken.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--noise", type=float, required=True)
    arguments = parser.parse_args()
    weaken(arguments.folder, arguments.noise)
