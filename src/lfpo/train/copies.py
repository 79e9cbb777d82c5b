"""Copies of weights that a run keeps beside its policies: an average of theta, and earlier versions of theta_old."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch

from lfpo.config.errors import UserError
from lfpo.models.tensor_files import local, read_like, split_like, tensor_paths, whole_on, write_shards

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
        files = tensor_paths(folder)
        if files.keys() != {UPDATES, *map(str, range(len(self.values)))}:
            raise UserError(
                f"{folder}: holds no average of these weights; resume with the 'average_decay' it was saved with"
            )
        for i, (value, p) in enumerate(zip(self.values, self.parameters, strict=True)):
            value.copy_(read_like(files[str(i)], str(i), p))
        self.updates = int(read_like(files[UPDATES], UPDATES, self.parameters[0]))


class Versions:
    """Copies of theta_old's weights in CPU memory, in their own dtype, one for each version that a loss is still to be
    compared with (`old_policy: sampler`).

    parameters: theta_old's; of split ones (FSDP) each rank copies its rows.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]):
        self.parameters = parameters
        self.kept: dict[int, list[torch.Tensor]] = {}  # version -> this rank's weights

    @contextlib.contextmanager
    def in_place(self, version: int, newest: int) -> Iterator[None]:
        """Within this context theta_old's weights are those of `version`; now, and again at the end, of `newest`. A
        copy of the newest ones is kept. Raises UserError where there is none of `version`."""
        self.kept[newest] = [local(p).to("cpu", copy=True) for p in self.parameters]
        if version not in self.kept:
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
        for p, value in zip(self.parameters, self.kept[version], strict=True):
            local(p).copy_(value)

    def keep_only(self, versions: Collection[int]) -> None:
        """Drop all others."""
        self.kept = {version: values for version, values in self.kept.items() if version in versions}

    def save(self, folder: Path) -> None:
        like = {f"{version}.{i}": p for version in self.kept for i, p in enumerate(self.parameters)}
        own = {f"{version}.{i}": value for version, kept in self.kept.items() for i, value in enumerate(kept)}
        write_shards(like, folder, "versions", lambda n, writer: whole_on(split_like(like[n], own[n]), writer))

    def load(self, folder: Path) -> None:
        files = tensor_paths(folder)  # none where there is no such folder
        for version in sorted({int(name.partition(".")[0]) for name in files}):
            named = {f"{version}.{i}": p for i, p in enumerate(self.parameters)}
            self.kept[version] = [local(read_like(files[name], name, p)).to("cpu") for name, p in named.items()]
