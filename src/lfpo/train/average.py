"""The average of theta that a run keeps beside its policies."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from lfpo.config.errors import UserError
from lfpo.models.tensor_files import read_like, tensor_paths, write_shards

UPDATES = "updates"


class Average:
    """An exponential moving average of the trained weights, for evaluation and export.

    average <- d average + (1 - d) theta after each optimiser step, with d = min(decay, (1 + t) / (10 + t)) at update t,
    so that the first weights do not stay in a short run's average.

    parameters: theta's trained parameters; split ones (FSDP) are averaged as they are split. The average has their
    dtype and device.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], decay: float):
        self.parameters, self.decay, self.updates = parameters, decay, 0
        self.values = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for value, p in zip(self.values, self.parameters, strict=True):
            value.lerp_(p.detach(), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and average in place; a second call exchanges them back."""
        for value, p in zip(self.values, self.parameters, strict=True):
            # One tensor at a time: a second copy of the whole model might not fit.
            held = p.detach().clone()
            p.copy_(value)
            value.copy_(held)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the model's weights are the average."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def save(self, folder: Path) -> None:
        tensors = {str(i): value for i, value in enumerate(self.values)} | {UPDATES: torch.tensor(self.updates)}
        write_shards(tensors, folder, "average")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Raises UserError where the folder holds no average of these weights."""
        files = tensor_paths(folder)
        if files.keys() != {UPDATES, *map(str, range(len(self.values)))}:
            raise UserError(
                f"{folder}: holds no average of these weights; resume with the 'average_decay' it was saved with"
            )
        for i, (value, p) in enumerate(zip(self.values, self.parameters, strict=True)):
            value.copy_(read_like(files[str(i)], str(i), p))
        self.updates = int(read_like(files[UPDATES], UPDATES, self.parameters[0]))
