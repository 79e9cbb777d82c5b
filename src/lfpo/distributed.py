"""Several processes as one: what `torchrun --nproc_per_node N -m lfpo ...` adds to a run.

Every function also works in a single process, where there is nothing to share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn


def start() -> tuple[int, int]:
    """Join the process group torchrun describes; returns (rank, world size), (0, 1) without torchrun."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def stop() -> None:
    """Leave the process group, once every process has come this far."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over processes, in one message."""
    if not dist.is_initialized():
        return
    trained = [p for p in parameters if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    dist.all_reduce(flat)
    for p, grad in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = grad.view_as(p)


def sum_number(value: float) -> float:
    """The sum of a number over processes."""
    if not dist.is_initialized():
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(tensor)
    return float(tensor)
