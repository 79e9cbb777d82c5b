"""Tensors as safetensors files, written by all ranks in parallel; no rank holds more than one file at a time.

A tensor split by FSDP is gathered on the rank that writes its file, on no other. The files have Hugging Face's layout
(one file, or several shard files with an index), so other tools and any number of ranks can read them.
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open
from safetensors.torch import save_file
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from lfpo.base import distributed
from lfpo.core import collectives
from lfpo.core.collectives import local

FILE_BYTES = 10**9  # what a rank collects in memory before it writes
PIECE_BYTES = 2**24  # what a rank receives at a time of a tensor that is gathered for it
DIGESTED = 256  # numbers of each tensor in `weights_digest`
FORMAT = {"format": "pt"}  # metadata that some readers require
GIB = 2**30


def write_shards(
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    stem: str,
    whole_tensor: Callable[[str, int], torch.Tensor | None] | None = None,
) -> None:
    """Write `stem`.safetensors, or `stem`-00001-of-0000N.safetensors with an index, into an existing folder that all
    ranks see. A collective; where a rank cannot write its file, all ranks stop (see distributed.each_writes).

    tensors: what to write, split or not; with `whole_tensor` their names, shapes and dtypes.
    whole_tensor(name, writer): the whole tensor on the rank `writer`, on any device; on other ranks it is not read. A
        collective. None: `whole_on`.
    """
    rank, world = collectives.rank(), collectives.world()
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.numel() * tensor.element_size(),
        filename_pattern=stem + "{suffix}.safetensors",
        max_shard_size=min(FILE_BYTES, math.ceil(total / world)),
    )
    files = list(split.filename_to_tensors.items()) or [(f"{stem}.safetensors", [])]
    for first in range(0, len(files), world):
        own_tensors: dict[str, torch.Tensor] = {}
        for writer, (_, names) in enumerate(files[first : first + world]):
            for name in names:
                tensor = whole_tensor(name, writer) if whole_tensor else whole_on(tensors[name], writer)
                if writer == rank and tensor is not None:
                    tensor = tensor.detach().contiguous().cpu()
                    # A view of a larger tensor would keep all of it in memory, and safetensors refuses to save it.
                    own_tensors[name] = tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
                tensor = None  # or it would be held while the next file's are made
        path = folder / files[first + rank][0] if first + rank < len(files) else None
        distributed.each_writes(functools.partial(save_tensors, own_tensors, path) if path else list)
    if len(files) > 1:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        distributed.by_first(lambda: (folder / f"{stem}.safetensors.index.json").write_text(text, encoding="utf-8"))


def whole_on(tensor: torch.Tensor, writer: int) -> torch.Tensor | None:
    """The whole of a tensor on the rank `writer`: on its CPU if it is split, else as it is. None on the other ranks,
    which send their rows and need no memory. A collective."""
    here = collectives.rank() == writer
    if not isinstance(tensor, DTensor):
        return tensor if here else None
    mesh, own = tensor.device_mesh, local(tensor)
    group = mesh.get_group(mesh.ndim - 1)
    ranks = dist.get_process_group_ranks(group)
    if writer not in ranks:
        return None  # the ranks of the writer's group hold all rows
    rows = math.ceil(len(tensor) / len(ranks))  # of each rank; the last ranks may have fewer
    # From the whole tensor: all ranks need the same step, and some may hold no rows.
    step = max(1, PIECE_BYTES // len(ranks) // (tensor.element_size() * math.prod(tensor.shape[1:])))
    collected = torch.empty(tensor.shape, dtype=tensor.dtype) if here else None
    for first in range(0, rows, step):
        part = own.new_zeros(min(step, rows - first), *own.shape[1:])
        own_part = own[first : first + step]
        part[: len(own_part)] = own_part
        parts = [torch.empty_like(part) for _ in ranks] if here else None
        dist.gather(part, parts, dst=writer, group=group)
        for place, other in enumerate(parts or []):
            begin = place * rows + first
            end = min(begin + len(other), len(tensor))
            if collected is not None and begin < end:
                collected[begin:end] = other[: end - begin]
    return collected


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file whose mode follows the umask, as that of other files; safetensors writes it as 0600."""
    partial = path.with_name(f".{path.name}.partial")  # the file at `path` may be mapped as a model's weights
    partial.touch()
    mode = partial.stat().st_mode
    save_file(tensors, partial, FORMAT)
    partial.chmod(mode)
    partial.replace(path)


def tensor_paths(folder: Path) -> dict[str, Path]:
    """The file that holds each tensor of a folder's safetensors files, by tensor name."""
    paths: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            paths |= dict.fromkeys(file.keys(), path)
    return paths


def weights_digest(folder: Path) -> str:
    """A digest of a folder's weights, whatever files they are in: of the name, dtype, shape and first numbers of each
    tensor. Training changes some of these, and a large model need not be read whole."""
    paths, found = tensor_paths(folder), dict[str, str]()
    for path in dict.fromkeys(paths.values()):
        with safe_open(path, framework="pt") as file:
            for name in (n for n, own in paths.items() if own == path):
                part = file.get_slice(name)
                shape = part.get_shape()
                rows = slice(DIGESTED if len(shape) == 1 else 1)
                first = (part[rows] if shape else file.get_tensor(name)).flatten()[:DIGESTED].contiguous()
                content = hashlib.sha256(first.view(torch.uint8).numpy()).hexdigest()
                found[name] = f"{name} {part.get_dtype()} {shape} {content}"
    return hashlib.sha256("\n".join(found[name] for name in sorted(found)).encode()).hexdigest()


def read_like(path: Path, name: str, parameter: nn.Parameter) -> torch.Tensor:
    """Read a tensor from a file. If it belongs to a split parameter (same shape, a DTensor), read only this rank's rows
    and return them as a DTensor split like `parameter`; otherwise return the whole tensor on the CPU."""
    with safe_open(path, framework="pt") as file:
        stored = file.get_slice(name)
        if not isinstance(parameter, DTensor) or stored.get_shape() != list(parameter.shape):
            return file.get_tensor(name)
        rows = stored[own_rows(parameter)]
    return split_like(parameter, rows)


def split_like(parameter: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """This rank's rows as a DTensor split like `parameter`, on its device unless that is meta; unchanged if `parameter`
    is not split."""
    if not isinstance(parameter, DTensor):
        return rows
    return DTensor.from_local(
        rows if parameter.is_meta else rows.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def own_rows(parameter: torch.Tensor) -> slice:
    """The rows of a split parameter that this rank holds; all rows of any other tensor. FSDP splits the first dimension
    into parts of equal size, of which the last may be smaller or empty."""
    if not isinstance(parameter, DTensor):
        return slice(None)
    dim = next(i for i, placement in enumerate(parameter.placements) if placement.is_shard())
    size = math.ceil(parameter.shape[0] / parameter.device_mesh.size(dim))
    start = min(parameter.device_mesh.get_local_rank(dim) * size, parameter.shape[0])
    return slice(start, start + size)
