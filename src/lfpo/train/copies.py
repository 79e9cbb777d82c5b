"""Copies of weights that a run keeps beside its policies: an average of theta, and earlier versions of theta_old."""

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from lfpo.config.errors import UserError
from lfpo.core.collectives import local
from lfpo.core.optim import Average
from lfpo.models.tensor_files import read_like, split_like, tensor_paths, whole_on, write_shards

UPDATES = "updates"


@torch.no_grad()
def swap(average: Average) -> None:
    """Exchange weights and average in place; a second call exchanges them back."""
    for value, p in zip(average.values, average.parameters, strict=True):
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


class Versions:
    """Copies of theta_old's weights in CPU memory, in their own dtype, one for each version that a loss is still to be
    compared with (`old_policy: sampler`).

    parameters: theta_old's; of split ones (FSDP) each rank copies its rows.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]):
        self.parameters = parameters
        self.weights: dict[int, list[torch.Tensor]] = {}  # version -> this rank's weights

    @contextlib.contextmanager
    def in_place(self, version: int, newest: int) -> Iterator[None]:
        """Within this context theta_old's weights are those of `version`; now, and again at the end, of `newest`. A
        copy of the newest ones is kept. Raises UserError where there is none of `version`."""
        self.weights[newest] = [local(p).to("cpu", copy=True) for p in self.parameters]
        if version not in self.weights:
            raise UserError(
                f"the checkpoint holds rollouts of the policy after {version} iterations, and not its weights; resume "
                "with old_policy reference"
            )
        self._set(version)
        try:
            yield
        finally:
            self._set(newest)

    @torch.no_grad()
    def _set(self, version: int) -> None:
        for p, value in zip(self.parameters, self.weights[version], strict=True):
            local(p).copy_(value)

    def keep_only(self, versions: Collection[int]) -> None:
        self.weights = {version: values for version, values in self.weights.items() if version in versions}

    def save(self, folder: Path) -> None:
        like = {f"{version}.{i}": p for version in self.weights for i, p in enumerate(self.parameters)}
        own = {f"{version}.{i}": value for version, values in self.weights.items() for i, value in enumerate(values)}
        write_shards(like, folder, "versions", lambda n, writer: whole_on(split_like(like[n], own[n]), writer))

    def load(self, folder: Path) -> None:
        files, self.weights = tensor_paths(folder), {}  # none where there is no such folder
        for version in sorted({int(name.partition(".")[0]) for name in files}):
            named = {f"{version}.{i}": p for i, p in enumerate(self.parameters)}
            self.weights[version] = [local(read_like(files[name], name, p)).to("cpu") for name, p in named.items()]
