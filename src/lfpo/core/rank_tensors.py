"""Tensors of several ranks: gathered, made whole, and summed."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from lfpo.core.collectives import announce, gather, sum_number


def all_gather_tensor(x: torch.Tensor) -> torch.Tensor:
    """Every rank's `x`, concatenated along dimension 0, which may differ between ranks and be 0, in the order of ranks,
    on the device of `x`. For small tensors."""
    return torch.cat(gather(x.cpu())).to(x.device) if dist.is_initialized() else x


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a DTensor (all ranks must call this); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over the ranks of the process group, in one all_reduce. DTensors are left out:
    FSDP has summed them."""
    trained = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    # Where no rank has a gradient there is none: with zeros, the optimiser's momentum would move the weights.
    if not trained or not any(gather(any(p.grad is not None for p in trained))):
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    announce()
    dist.all_reduce(flat)
    for p, grad in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = grad.view_as(p)


def total_of_parts(numbers: Sequence[float], tensors: Sequence[torch.Tensor]) -> float:
    """The sum of a number of each tensor, that of a split one being of this rank's part, over all ranks' parts. A
    collective."""
    pairs = list(zip(numbers, tensors, strict=True))
    # Replicas of a part are all counted, each as its share.
    parts = sum(number / _replicas(t) for number, t in pairs if isinstance(t, DTensor))
    return sum(number for number, t in pairs if not isinstance(t, DTensor)) + sum_number(parts)


def _replicas(tensor: DTensor) -> int:
    """How many ranks hold the same rows."""
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, placement in sizes if placement.is_replicate())
