"""Several processes as one: what `torchrun --nproc_per_node N -m lfpo ...` adds to a run.

Every function also works in a single process, where there is nothing to share.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from lfpo.base.errors import ProcessLost, UserError
from lfpo.base.heartbeat import Heartbeat, Limits, names

T = TypeVar("T")

JOIN = 600.0  # seconds in which all processes must have started
FOREVER = timedelta(days=20)  # the heartbeat decides how long is too long, and names who kept the others waiting
# What gloo and NCCL say when another process has ended in the midst of an exchange.
BROKEN = ("onnection closed by peer", "onnection reset by peer", "roken pipe", "remote process exited")

at_work = False  # whether processes have begun to do different things
_heart: Heartbeat | None = None


def start() -> None:
    """Join the process group that torchrun describes. Without torchrun, or once joined, this does nothing.

    Raises ProcessLost when a process does not come.
    """
    global _heart
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        store, rank, world, address = _meet()
        _heart = Heartbeat(store.clone(), rank, world, address)
        _heart.start()
        atexit.register(_heart.close)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        _heart.limits = Limits(progress=JOIN)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=FOREVER)
        _heart.limits = None


def rank() -> int:
    """This process's rank in the group; 0 when `start` joined none."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """The number of ranks in the group; 1 when `start` joined none."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _meet() -> tuple[Any, int, int, str]:
    """The store of these processes, this one's rank, the world size, and the store's address."""
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=JOIN)))
    except dist.DistError as error:
        why = str(error).strip().splitlines()[0]
        raise ProcessLost(f"process {os.environ.get('RANK')} did not meet the others at {address}: {why}") from error
    # torchrun's own prefix is the count of restarts, of which each of several machines keeps its own.
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    name = agree(store, rank, world, JOIN)
    return dist.PrefixStore(name, store), rank, world, address  # type: ignore[attr-defined]


def agree(store: Any, rank: int, world: int, seconds: float) -> str:
    """A name for this start of these processes, which no earlier one has had that used the same store.

    Processes started again find in the store what those before them left, and would call at addresses of the dead. So
    each leaves a word of its own; the first shows all words that it finds, and who sees his own among them answers to
    the first one's, which is the name. Raises ProcessLost, naming who did not come within `seconds`.
    """
    own, name, until = uuid.uuid4().hex, "", time.monotonic() + seconds
    words = [f"word {r}" for r in range(world)]
    store.set(words[rank], own)
    while time.monotonic() < until:
        if rank == 0:
            name = own
            store.set("words", json.dumps([store.get(w).decode() if store.check([w]) else "" for w in words]))
            if store.check([f"{name} {r}" for r in range(1, world)]):
                store.set(f"{name} 0", "")
                return name
        elif store.check(["words"]) and own in (shown := json.loads(store.get("words"))):
            name = shown[0]
            store.set(f"{name} {rank}", "")
            if store.check([f"{name} 0"]):
                return name
        time.sleep(0.02 * (1 + world / 64))
    others = [r for r in range(1, world) if r != rank]
    absent = [r for r in others if not store.check([f"{name} {r}"])] if name else [0]
    raise ProcessLost(f"{names(absent or [0])} of {world} did not start in {seconds:g} s")


@contextmanager
def watched(rank_timeout: float = Limits.rank, progress_timeout: float = Limits.progress) -> Iterator[None]:
    """While open, this process ends when another one is lost, and says which (see lfpo.base.heartbeat).

    A connection that breaks raises ProcessLost; what would only wait forever ends with exit code 75.
    """
    start()
    heart = _heart
    if heart is None:
        yield
        return
    before, heart.still = heart.limits, 0.0
    heart.limits = Limits(rank_timeout, progress_timeout)
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in BROKEN):
            raise
        with _unstopped():
            raise ProcessLost(heart.missing(), heart.speaks()) from error
    finally:
        heart.limits = before


@contextmanager
def _unstopped() -> Iterator[None]:
    """torchrun ends the processes that are left: not before this one has said why."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def device() -> torch.device:
    """This process's own."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda", torch.cuda.current_device())


def launched() -> bool:
    """Whether torchrun started this process. It may be the second time (--max-restarts): the count that it gives is
    that of this machine's failures, and processes are also started again where those of another machine failed."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def stop() -> None:
    """Leave the process group, once every process has come this far."""
    global _heart
    if dist.is_initialized():
        with watched():
            barrier()
        if _heart is not None:
            _heart.close()
        _heart = None
        dist.destroy_process_group()


def _come() -> None:
    """This process has come to the next exchange."""
    if _heart is not None:
        _heart.exchanges += 1


def gather(value: T) -> list[T]:
    """Every process's value, by rank, on every process. For small things: they travel pickled between processes."""
    if not dist.is_initialized():
        return [value]
    _come()
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather_to_first(value: T) -> list[T]:
    """Every rank's value, by rank, on rank 0; nothing on the others. Values travel pickled."""
    if not dist.is_initialized():
        return [value]
    _come()
    values: list[Any] | None = [None] * world() if rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def share(n: int) -> list[int]:
    """Which of n things are this process's: a run of them, so that gathering by rank keeps their order."""
    return torch.arange(n).tensor_split(world())[rank()].tolist()


def together(action: Callable[[], T]) -> list[T]:
    """What `action` returned in every process, by rank. A UserError of one is raised in all of them, so that none is
    left waiting for it."""
    outcome: tuple[T | None, str | None]
    try:
        outcome = action(), None
    except UserError as error:
        outcome = None, str(error)
    outcomes = gather(outcome)
    for _, message in outcomes:
        if message is not None:
            raise UserError(message)
    return [value for value, _ in outcomes]  # type: ignore[misc]


def barrier() -> None:
    """Wait until every process has come here."""
    if dist.is_initialized():
        _come()
        dist.barrier()


def each_writes(work: Callable[[], T]) -> T:
    """Each process's own part of writing something. Where a file cannot be written all stop: the first process that
    failed with its error, the others with exit code 2 and no words."""
    failure: Exception | None = None
    try:
        result = work()
    except (OSError, SafetensorError) as error:
        failure = error
    failed = gather(failure is not None)
    if not any(failed):
        return result
    if failure is not None and failed.index(True) == (dist.get_rank() if dist.is_initialized() else 0):
        raise failure
    raise SystemExit(2)


def by_first(work: Callable[[], object]) -> None:
    """Done by the first process alone; the others wait, and stop with it where it fails."""
    each_writes(lambda: work() if not dist.is_initialized() or dist.get_rank() == 0 else None)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a sharded one is part of; every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over processes, in one message. Sharded ones are left out: FSDP has summed
    them."""
    if not dist.is_initialized():
        return
    trained = [p for p in parameters if p.requires_grad and not isinstance(p, DTensor)]
    # Where no process has a gradient there is none: zeros would let the optimiser's momentum move the weights.
    if not trained or not any(gather(any(p.grad is not None for p in trained))):
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    _come()
    dist.all_reduce(flat)
    for p, grad in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        p.grad = grad.view_as(p)


def sum_number(value: float) -> float:
    """The sum of a number over processes."""
    if not dist.is_initialized():
        return value
    return float(sum_tensor(torch.tensor(value, dtype=torch.float64)))


def sum_tensor(x: torch.Tensor) -> torch.Tensor:
    """The sum over ranks of a float64 tensor of the same shape on every rank. Returned on the device of `x`, which is
    left as it is."""
    if not dist.is_initialized():
        return x
    total = x.to(_collective_device(), copy=True)
    _come()
    dist.all_reduce(total)
    return total.to(x.device)


def all_gather_tensor(x: torch.Tensor) -> torch.Tensor:
    """Every rank's `x`, concatenated along dimension 0 in the order of ranks. Returned on the device of `x`.

    The first dimension may differ between ranks and may be 0; dtype and the other dimensions must be the same.
    """
    if not dist.is_initialized():
        return x
    own = _collective_device()
    sizes = [torch.zeros(1, dtype=torch.int64, device=own) for _ in range(world())]
    _come()
    dist.all_gather(sizes, torch.tensor([len(x)], device=own))
    lengths = torch.cat(sizes).tolist()
    padded = x.new_zeros((max(lengths), *x.shape[1:]), device=own)  # all_gather takes equal shapes only
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in lengths]
    _come()
    dist.all_gather(parts, padded)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)]).to(x.device)


def _collective_device() -> torch.device:
    """Where tensors must be for a collective: NCCL takes those of this rank's GPU, gloo those on the CPU."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to a norm of at most max_norm (0: leave them); returns the norm before. Sharded and whole
    parameters may stand side by side, which torch's own function does not take."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return 0.0
    local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
    squares = torch.stack([_square_sum(g.detach()) for g in local]).tolist()  # asked of the device at once
    total = sum(s for s, g in zip(squares, grads, strict=True) if not isinstance(g, DTensor))
    parts = sum(s for s, g in zip(squares, grads, strict=True) if isinstance(g, DTensor))
    norm = math.sqrt(total + (sum_number(parts) if any(isinstance(g, DTensor) for g in grads) else 0.0))
    if max_norm and norm > max_norm:
        torch._foreach_mul_(local, max_norm / (norm + 1e-6))
    return norm


def _square_sum(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, a piece at a time: a copy of a vocabulary's gradient would be the largest tensor of all."""
    pieces = tensor.flatten().split(2**24)
    return torch.stack([p.double().square().sum() for p in pieces]).sum()
