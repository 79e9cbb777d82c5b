"""Collectives over the ranks of a run. Without a process group there is one rank, and every function works the same.

lfpo.base.distributed starts and watches the group.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch import nn
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


def gather(value: T) -> list[T]:
    """Every rank's value, by rank, on every rank. For small things: values are pickled."""
    if not dist.is_initialized():
        return [value]
    announce()
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def share(n: int) -> list[int]:
    """Which of n items are this rank's: consecutive ones, so that a gather by rank keeps the order of all."""
    return torch.arange(n).tensor_split(world())[rank()].tolist()


def together(action: Callable[[], T]) -> list[T]:
    """What `action` returned on each rank, by rank. A UserError on one rank is raised on all, as CannotGoOn: none is
    left waiting."""
    cause: UserError | None = None
    try:
        outcomes = gather((action(), ""))
    except UserError as error:
        cause, outcomes = error, gather((None, str(error)))  # type: ignore[arg-type]
    values = []
    for value, message in outcomes:
        if message:
            raise CannotGoOn(message) from cause
        values.append(value)
    return values


def alone(action: Callable[[], T]) -> T:
    """What `action` returned on this rank; nothing is sent but errors, which are those of `together`."""
    own: list[T] = []
    together(lambda: own.append(action()))
    return own[0]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a DTensor (all ranks must call this); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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


def means_over_ranks(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Sum over count of each [sum, count], over all ranks; names that count nothing are left out. A collective."""
    return merged_means(gather({name: tuple(value) for name, value in sums.items()}))


def merged_means(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """`means_over_ranks` of what each rank has given."""
    names = sorted({name for part in parts for name in part})
    totals = {name: [sum(pair) for pair in zip(*(p[name] for p in parts if name in p), strict=True)] for name in names}
    return {name: total / count for name, (total, count) in totals.items() if count}


def all_gather_tensor(x: torch.Tensor) -> torch.Tensor:
    """Every rank's `x`, concatenated along dimension 0, which may differ between ranks and be 0, in the order of ranks,
    on the device of `x`. For small tensors."""
    return torch.cat(gather(x.cpu())).to(x.device) if dist.is_initialized() else x


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over ranks, in one all_reduce. DTensors are left out: FSDP has summed them."""
    if not dist.is_initialized():
        return
    trained = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    # Where no rank has a gradient there is none: with zeros, the optimiser's momentum would move the weights.
    if not trained or not any(gather(any(p.grad is not None for p in trained))):
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    announce()
    dist.all_reduce(flat)
    for p, grad in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = grad.view_as(p)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to a norm of at most max_norm (0: do not scale); returns the norm before. Unlike torch's
    own function it takes DTensors and other parameters together."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return 0.0
    local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    squares = torch.stack([_square_sum(g.detach()) for g in local]).tolist()  # one wait for the device
    total = sum(s for s, g in zip(squares, grads, strict=True) if not isinstance(g, DTensor))
    # Replicas of a part are all counted, each as its share.
    parts = sum(s / _replicas(g) for s, g in zip(squares, grads, strict=True) if isinstance(g, DTensor))
    norm = math.sqrt(total + (sum_number(parts) if any(isinstance(g, DTensor) for g in grads) else 0.0))
    if max_norm and norm > max_norm:
        torch._foreach_mul_(local, max_norm / (norm + 1e-6))
    return norm


def _replicas(tensor: DTensor) -> int:
    """How many ranks hold the same rows."""
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, placement in sizes if placement.is_replicate())


def _square_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of squares in float64, 2**24 elements at a time: a float64 copy of the embeddings' gradient would be the
    largest tensor."""
    return torch.stack([part.double().square().sum() for part in tensor.flatten().split(2**24)]).sum()


def collective_device() -> torch.device:
    """Where tensors must be for a collective: on this rank's GPU for NCCL, on the CPU for gloo."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")


def announce() -> None:
    """Tell `on_collective` of a collective that this rank joins."""
    for call in on_collective:
        call()
