"""The average of theta that a run keeps beside its policies."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from lfpo.config.errors import UserError
from lfpo.core.optim import Average
from lfpo.models.tensor_files import read_like, tensor_paths, write_shards

UPDATES = "updates"


@torch.no_grad()
def swap(average: Average) -> None:
    """Exchange weights and average in place; a second call exchanges them back."""
    for value, p in zip(average.values, average.parameters, strict=True):
        # One tensor at a time: a second copy of the whole model might not fit.
        held = p.detach().clone()
        p.copy_(value)
        value.copy_(held)


@contextlib.contextmanager
def in_place(average: Average) -> Iterator[None]:
    """Within this context the model's weights are the average."""
    swap(average)
    try:
        yield
    finally:
        swap(average)


@dataclass
class AverageFiles:
    """A run's average of theta, as checkpoints hold it."""

    average: Average

    def save(self, folder: Path) -> None:
        average = self.average
        tensors = {str(i): value for i, value in enumerate(average.values)} | {UPDATES: torch.tensor(average.updates)}
        write_shards(tensors, folder, "average")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Raises UserError where the folder holds no average of these weights."""
        files, average = tensor_paths(folder), self.average
        if files.keys() != {UPDATES, *map(str, range(len(average.values)))}:
            raise UserError(
                f"{folder}: holds no average of these weights; resume with the 'average_decay' it was saved with"
            )
        for i, (value, p) in enumerate(zip(average.values, average.parameters, strict=True)):
            value.copy_(read_like(files[str(i)], str(i), p))
        average.updates = int(read_like(files[UPDATES], UPDATES, average.parameters[0]))
