"""Earlier versions of theta_old, for losses that compare with the policy that sampled (`old_policy: sampler`)."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from lfpo.base import distributed
from lfpo.base.errors import UserError
from lfpo.models.tensor_files import local, read_like, split_like, tensor_paths, write_shards


class Versions:
    """Copies of theta_old's weights in CPU memory, in their own dtype, one for each version that is still needed.

    parameters: theta_old's; of split ones (FSDP) each rank copies its rows.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]):
        self.parameters = parameters
        self.kept: dict[int, list[torch.Tensor]] = {}  # version -> this rank's weights

    @contextlib.contextmanager
    def in_place(self, version: int, newest: int) -> Iterator[None]:
        """Within this context theta_old's weights are those of `version`; now, and again at the end, of `newest`.

        A copy of the newest ones is kept. Raises UserError where there is none of `version`.
        """
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
        """Write all copies into an existing folder. A collective."""
        like = {f"{version}.{i}": p for version in self.kept for i, p in enumerate(self.parameters)}
        own = {f"{version}.{i}": value for version, kept in self.kept.items() for i, value in enumerate(kept)}
        write_shards(like, lambda name: distributed.whole(split_like(like[name], own[name])), folder, "versions")

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; nothing where there is no such folder. Raises UserError for other weights."""
        files = tensor_paths(folder)
        for version in sorted({int(name.partition(".")[0]) for name in files}):
            names = [f"{version}.{i}" for i in range(len(self.parameters))]
            found = [read_like(files[n], n, p) for n, p in zip(names, self.parameters, strict=True) if n in files]
            if [f.shape for f in found] != [p.shape for p in self.parameters]:
                raise UserError(f"{folder}: holds other weights than these; resume with the 'lora' it was saved with")
            self.kept[version] = [local(f).to("cpu") for f in found]
