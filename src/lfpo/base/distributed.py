"""The process group that `torchrun --nproc_per_node N -m lfpo ...` starts, and its collectives.

Without torchrun there is one rank, and every function works the same.
"""

import atexit
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from lfpo.base.heartbeat import Heartbeat, meet
from lfpo.config.errors import CannotGoOn, ProcessLost, UserError

T = TypeVar("T")

JOIN = 600.0  # seconds in which all ranks must have started
FOREVER = 20 * 86_400.0
# What gloo and NCCL say in a collective when another rank has ended, or did not come within the group's timeout. NCCL:
# ncclRemoteError, a collective after torch's watchdog has aborted the communicator, and the watchdog's reason.
LOST_RANK = re.compile(
    "onnection (closed|reset) by (remote )?peer|roken pipe|remote process exit|imed out waiting"
    "|NCCL communicator was aborted|Watchdog caught collective operation timeout"
)
# Seconds by which torch's watchdog is later than `progress_timeout` under NCCL: it ends the process without a name.
AFTER = 60.0

at_work = False  # whether there are several ranks and `begin_work` was called
_groups: list[Any] = []  # process groups beside the one of all ranks
_heart: Heartbeat | None = None


def start() -> None:
    """Join the process group that torchrun's environment variables describe; without them, or once joined, do nothing.
    Raises ProcessLost when a rank does not come."""
    global _heart
    # torchrun's group of one is a group too, so that one GPU can run what many do.
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1 and not {"WORLD_SIZE", "RANK", "MASTER_ADDR"} <= set(os.environ)
    if alone or dist.is_initialized():
        return
    own = device()  # before the group: NCCL would put every rank on the first GPU
    join = timedelta(seconds=JOIN)
    try:
        shared, rank, world = next(rendezvous("env://", timeout=join))
        store: Any = dist.PrefixStore(meet(shared, rank, world, JOIN), shared)  # type: ignore[attr-defined]
        _heart = Heartbeat(store.clone(), rank, world)
        _heart.start()
        atexit.register(_heart.close)
        place: dict[str, Any] = {"backend": "nccl", "device_id": own} if own.type == "cuda" else {"backend": "gloo"}
        dist.init_process_group(store=store, rank=rank, world_size=world, timeout=join, **place)
    except RuntimeError as error:
        raise ProcessLost(
            f"rank {os.environ['RANK']} could not join the other ranks at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({str(error).strip().splitlines()[0]})"
        ) from error


def stop() -> None:
    """Leave the process group, once every rank has come this far."""
    global _heart
    if dist.is_initialized():
        with watched():
            barrier()
        if _heart is not None:
            _heart.close()
        _heart = None
        _groups.clear()
        dist.destroy_process_group()


def rank() -> int:
    """This process's rank in the group; 0 when `start` joined none."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """The number of ranks in the group; 1 when `start` joined none."""
    return dist.get_world_size() if dist.is_initialized() else 1


def device() -> torch.device:
    """This rank's GPU, made CUDA's current device, or the CPU where there is none. Raises UserError where a machine has
    fewer GPUs than ranks."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= found:
        raise UserError(
            f"{os.environ.get('LOCAL_WORLD_SIZE', number + 1)} ranks on a machine with {found} "
            f"GPU{'s' if found > 1 else ''}: give torchrun --nproc_per_node {found}"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def mesh(shards: int = 0) -> DeviceMesh:
    """The ranks as a mesh for FSDP: [ranks], or with `shards` below their number (a divisor of it) [ranks / shards,
    shards], of which the last dimension splits weights and the first repeats them. A collective; needs `start`."""
    kind = _collective_device().type
    if shards in (0, world()):
        return init_device_mesh(kind, (world(),))
    found = init_device_mesh(kind, (world() // shards, shards), mesh_dim_names=("replicate", "shard"))
    _groups.extend(found.get_group(dim) for dim in (0, 1))
    return found


def begin_work() -> None:
    """From here on ranks work on different rows and may fail alone, so every rank prints its own errors."""
    global at_work
    at_work = world() > 1


@contextmanager
def watched(rank_timeout: float = 300.0, progress_timeout: float = 7200.0) -> Iterator[None]:
    """While open, this rank ends when another is lost, and says which one and where it was (see lfpo.base.heartbeat).

    rank_timeout: seconds without a sign of life after which a rank is lost; this process then exits with code 75.
    progress_timeout: seconds that a collective waits for a rank, and then raises ProcessLost. 0: no limit.
    """
    start()
    heart = _heart
    if heart is None:
        yield
        return
    # In gloo a late collective raises. In NCCL it runs on the GPU, and the main thread waits where nothing can be
    # raised, so the heartbeat's thread ends the process.
    nccl = dist.get_backend() == "nccl"
    limit = timedelta(seconds=progress_timeout + AFTER * nccl if progress_timeout else FOREVER)
    for group in (dist.group.WORLD, *_groups):
        group.set_timeout(limit)
    before, heart.timeout = heart.timeout, rank_timeout
    heart.patience = progress_timeout if nccl else 0.0
    try:
        yield
    except RuntimeError as error:
        if not LOST_RANK.search(str(error)):
            raise
        raise ProcessLost(heart.explain(), heart.speaks()) from error
    finally:
        heart.timeout, heart.patience = before, 0.0


def gather(value: T) -> list[T]:
    """Every rank's value, by rank, on every rank. For small things: values are pickled."""
    if not dist.is_initialized():
        return [value]
    _count()
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def gather_to_first(value: T) -> list[T]:
    """Every rank's value, by rank, on rank 0; [] on the other ranks. Values are pickled."""
    if not dist.is_initialized():
        return [value]
    _count()
    values: list[Any] | None = [None] * world() if rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def scatter_from_first(values: list[T]) -> T:
    """The value that rank 0 has for this rank. values: by rank, on rank 0; [] on the other ranks."""
    if not dist.is_initialized():
        return values[0]
    _count()
    own: list[Any] = [None]
    dist.scatter_object_list(own, values if rank() == 0 else None)
    return own[0]


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
    for _, message in outcomes:
        if message:
            raise CannotGoOn(message) from cause
    return [value for value, _ in outcomes]


def alone(action: Callable[[], T]) -> T:
    """What `action` returned on this rank; nothing is sent but errors, which are those of `together`."""
    own: list[T] = []
    together(lambda: own.append(action()))
    return own[0]


def barrier() -> None:
    if dist.is_initialized():
        _count()
        dist.barrier()


def each_writes(work: Callable[[], T]) -> T:
    """Write this rank's part of the files. If a rank cannot write, all ranks stop: the lowest such rank raises its
    error, the others exit silently with code 2."""
    try:
        result = work()
    except (OSError, SafetensorError):
        if gather(True).index(True) == rank():
            raise
        raise SystemExit(2) from None
    if any(gather(False)):
        raise SystemExit(2)
    return result


def by_first(work: Callable[[], object]) -> None:
    """Done by rank 0; the other ranks wait, and stop as in `each_writes` if it fails."""
    each_writes(lambda: work() if rank() == 0 else None)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a DTensor (all ranks must call this); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sum_number(value: float) -> float:
    """The sum of a number over ranks, in float64."""
    if not dist.is_initialized():
        return float(value)
    total = torch.tensor(value, dtype=torch.float64, device=_collective_device())
    _count()
    dist.all_reduce(total)
    return float(total)


def means_over_ranks(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Sum over count of each [sum, count], over all ranks; names that count nothing are left out. A collective."""
    ranks = gather({name: tuple(value) for name, value in sums.items()})
    names = sorted({name for part in ranks for name in part})
    totals = {name: [sum(pair) for pair in zip(*(p[name] for p in ranks if name in p), strict=True)] for name in names}
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
    _count()
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
    """In float64, 2**24 elements at a time: a float64 copy of the embeddings' gradient would be the largest tensor."""
    return torch.stack([part.double().square().sum() for part in tensor.flatten().split(2**24)]).sum()


def _collective_device() -> torch.device:
    """Where tensors must be for a collective: on this rank's GPU for NCCL, on the CPU for gloo."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")


def _count() -> None:
    """Count a collective that this rank joins."""
    if _heart is not None:
        _heart.collectives += 1
