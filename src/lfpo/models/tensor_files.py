"""Tensors as safetensors files, written by all processes at once, of which none ever holds more than a file.

A tensor that FSDP split is put together on its own, for the process that writes its file. The files are Hugging Face's:
one, or several with an index; so any tool reads them, and any number of processes.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor

from lfpo.base import distributed

FILE_BYTES = 5 * 10**9
FORMAT = {"format": "pt"}  # some readers insist


def write_shards(
    tensors: Mapping[str, torch.Tensor], whole: Callable[[str], torch.Tensor], folder: Path, stem: str
) -> None:
    """Write `stem`.safetensors into an existing folder that all processes see, or files stem-00001-of-0000N with their
    index. All processes call this alike; where one cannot write, all stop (see distributed.each_writes).

    tensors: names and shapes of what to write, perhaps split. whole(name): the values, all of them, on any device; what
        it needs of other processes they give by calling it too.
    """
    rank, world = distributed.rank(), distributed.world()
    sizes = {name: t.numel() * t.element_size() for name, t in tensors.items()}
    files = pack_files(sizes, min(FILE_BYTES, math.ceil(sum(sizes.values()) / world)))
    names = [f"{stem}.safetensors"]
    if len(files) > 1:
        names = [f"{stem}-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    for first in range(0, len(files), world):
        mine: dict[str, torch.Tensor] = {}
        for writer, file in enumerate(files[first : first + world]):
            for name in file:
                tensor = whole(name)
                if writer == rank:
                    mine[name] = alone(tensor.detach().contiguous().cpu())
        path = folder / names[first + rank] if first + rank < len(files) else None
        distributed.each_writes(functools.partial(_write, mine, path))
    if len(files) > 1:
        where = {name: path for path, file in zip(names, files, strict=True) for name in file}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        distributed.by_first(lambda: (folder / f"{stem}.safetensors.index.json").write_text(text, encoding="utf-8"))


def _write(tensors: dict[str, torch.Tensor], path: Path | None) -> None:
    if path is not None:
        save_file(tensors, path, FORMAT)


def pack_files(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in their order, file by file; a file holds `limit` bytes at most, or one larger tensor. At least one."""
    files: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if size > room and files[-1]:
            files.append([])
            room = limit
        files[-1].append(name)
        room -= size
    return files


def alone(tensor: torch.Tensor) -> torch.Tensor:
    """With storage of its own: weights that FSDP put together are views of a padded buffer, which cannot be saved."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def places(folder: Path) -> dict[str, Path]:
    """Which file of a folder each tensor is in."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found


def read_like(path: Path, name: str, parameter: nn.Parameter) -> torch.Tensor:
    """A tensor from a file: of one that has a split parameter's shape only this process's rows, split likewise."""
    with safe_open(path, framework="pt") as file:
        found = file.get_slice(name)
        if not isinstance(parameter, DTensor) or found.get_shape() != list(parameter.shape):
            return file.get_tensor(name)
        mesh = parameter.device_mesh
        size = math.ceil(parameter.shape[0] / mesh.size())
        start = min(mesh.get_local_rank() * size, parameter.shape[0])
        rows = found[start : start + size]
    return DTensor.from_local(
        rows.to(parameter.device),
        mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
