"""Collectives over the ranks of a run, and the device of each. Without a process group there is one rank, and every
function works the same.

lfpo.base.distributed starts and watches the group.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from lfpo.config.errors import CannotGoOn, UserError

T = TypeVar("T")

on_collective: list[Callable[[], None]] = []  # called before each collective that this rank joins


def rank() -> int:
    """This process's rank in the group; 0 where there is no group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """The number of ranks in the group; 1 where there is no group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: T) -> list[T]:
    """Every rank's value, by rank, on every rank. For small things: values are pickled."""
    if not dist.is_initialized():
        return [value]
    announce()
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def own_indices(n: int) -> list[int]:
    """Which of n items are this rank's: consecutive ones, so that a gather by rank keeps the order of all."""
    return torch.arange(n).tensor_split(world())[rank()].tolist()


def on_every_rank(action: Callable[[], T]) -> list[T]:
    """What `action` returned on each rank, by rank. A UserError on one rank is raised on all, as CannotGoOn: none is
    left waiting."""
    cause: UserError | None = None
    try:
        outcomes = gather((action(), ""))
    except UserError as error:
        cause, outcomes = error, gather((None, str(error)))  # type: ignore[arg-type]
    if messages := [message for _, message in outcomes if message]:
        raise CannotGoOn(messages[0]) from cause
    return [value for value, _ in outcomes]


def raise_on_all(action: Callable[[], T]) -> T:
    """What `action` returned on this rank; nothing is sent but errors, which are those of `on_every_rank`."""
    own: list[T] = []
    on_every_rank(lambda: own.append(action()))
    return own[0]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of a split tensor that this rank holds; any other tensor itself. Without gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_number(value: float) -> float:
    """The sum of a number over ranks, in float64."""
    if not dist.is_initialized():
        return float(value)
    total = torch.tensor(value, dtype=torch.float64, device=collective_device())
    announce()
    dist.all_reduce(total)
    return float(total)


def announce() -> None:
    """Tell `on_collective` of a collective that this rank joins."""
    for call in on_collective:
        call()


def device() -> torch.device:
    """This rank's GPU, made CUDA's current device, or the CPU where there is none. Raises UserError where a machine has
    fewer GPUs than ranks."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= gpus:
        raise UserError(
            f"{os.environ.get('LOCAL_WORLD_SIZE', local_rank + 1)} ranks on a machine with {gpus} "
            f"GPU{'s' if gpus > 1 else ''}: give torchrun --nproc_per_node {gpus}"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def collective_device() -> torch.device:
    """Where tensors must be for a collective: on this rank's GPU for NCCL, on the CPU for gloo."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")
