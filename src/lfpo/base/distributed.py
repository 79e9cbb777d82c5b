"""The process group that `torchrun --nproc_per_node N -m lfpo ...` starts, and what its ranks do to files.

Without torchrun there is one rank, and every function works the same. Its collectives: lfpo.core.collectives.
"""

import atexit
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from safetensors import SafetensorError
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from lfpo.base.heartbeat import Heartbeat, meet
from lfpo.config.errors import ProcessLost, first_line
from lfpo.config.json import Json
from lfpo.core.collectives import announce, collective_device, device, gather, on_collective, rank, world

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

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a rank

at_work = False  # whether there are several ranks and `begin_work` was called
_groups: list[Any] = []  # process groups beside the one of all ranks
_heart: Heartbeat | None = None


def start() -> None:
    """Join the process group that torchrun's environment variables describe; without them, or once joined, do nothing.
    Raises ProcessLost when a rank does not come."""
    global _heart
    if dist.is_initialized() or not launched():
        return
    own = device()  # before the group: NCCL would put every rank on the first GPU
    join = timedelta(seconds=JOIN)
    try:
        shared, rank, world = next(rendezvous("env://", timeout=join))
        store: Any = dist.PrefixStore(meet(shared, rank, world, JOIN), shared)  # type: ignore[attr-defined]
        _heart = Heartbeat(store.clone(), rank, world)
        _heart.start()
        atexit.register(_heart.close)
        place: Json = {"backend": "nccl", "device_id": own} if own.type == "cuda" else {"backend": "gloo"}
        dist.init_process_group(store=store, rank=rank, world_size=world, timeout=join, **place)
    except RuntimeError as error:
        raise ProcessLost(
            f"rank {os.environ['RANK']} could not join the other ranks at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({first_line(error)})"
        ) from error


def launched() -> bool:
    """Whether the environment names a group of ranks. torch raises where it names one in part."""
    # torchrun's group of one is a group too, so that one GPU can run what many do.
    return os.environ.get("WORLD_SIZE", "1") != "1" or all(name in os.environ for name in LAUNCHED)


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


def mesh(shards: int = 0) -> DeviceMesh:
    """The ranks as a mesh for FSDP: [ranks], or with `shards` below their number (a divisor of it) [ranks / shards,
    shards], of which the last dimension splits weights and the first repeats them. A collective; needs `start`."""
    kind = collective_device().type
    if shards in (0, world()):
        return init_device_mesh(kind, (world(),))
    device_mesh = init_device_mesh(kind, (world() // shards, shards), mesh_dim_names=("replicate", "shard"))
    _groups.extend(device_mesh.get_group(dim) for dim in (0, 1))
    return device_mesh


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


def gather_to_first(value: T) -> list[T]:
    """Every rank's value, by rank, on rank 0; [] on the other ranks. Values are pickled."""
    if not dist.is_initialized():
        return [value]
    announce()
    values: list[Any] | None = [None] * world() if rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def scatter_from_first(values: list[T]) -> T:
    """The value that rank 0 has for this rank. values: by rank, on rank 0; [] on the other ranks."""
    if not dist.is_initialized():
        return values[0]
    announce()
    own: list[Any] = [None]
    dist.scatter_object_list(own, values if rank() == 0 else None)
    return own[0]


def barrier() -> None:
    if dist.is_initialized():
        announce()
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


def _count() -> None:
    """Count a collective that this rank joins."""
    if _heart is not None:
        _heart.collectives += 1


on_collective.append(_count)
