"""One step of the optimiser, its learning rate, and the move of theta_old."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from lfpo.config.json import Json
from lfpo.core import collectives
from lfpo.core.collectives import local
from lfpo.core.failures import count_skipped
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.observer import Observer
from lfpo.core.rank_tensors import sum_gradients, total_of_parts


def take_step(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    args: Any,
    loss: float,
    *,
    number: int,
    total: int,
    state: Json,
    observer: Observer,
    after_step: Callable[[], object] | None = None,
) -> dict[str, float]:
    """End optimiser step `number` (from 0) of `total`: sum loss and gradients over ranks, clip, step where both are
    finite, drop the gradients. Returns loss, grad_norm (before clipping) and learning_rate.

    args: a configuration with output_dir, max_grad_norm (0 does not clip) and what `lr_at` reads. loss: this rank's
    part. state: counts steps that are not taken. Of one that is, observer.event gets on_pre_optimizer_step and
    on_optimizer_step while its gradients are there; then after_step is called.
    """
    lr = lr_at(args, number, total)
    for group in optimizer.param_groups:
        group["lr"] = lr
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = collectives.sum_number(loss)
    if dist.is_initialized():
        sum_gradients(parameters)
    norm = clip_gradients(parameters, args.max_grad_norm)
    if finite := math.isfinite(norm) and math.isfinite(loss):
        state["skipped_in_a_row"] = 0
        observer.event("on_pre_optimizer_step")
        optimizer.step()
        observer.event("on_optimizer_step")
        if after_step is not None:
            after_step()
    optimizer.zero_grad()
    if not finite:
        observer.note(f"optimiser step {number + 1}: loss is {loss}, gradient norm {norm}; update skipped")
        count_skipped(state, args.output_dir, number)
    return {"loss": loss, "grad_norm": norm, "learning_rate": lr}


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale gradients down to a norm of at most max_norm (0: do not scale); returns the norm before. Unlike torch's
    own function it takes DTensors and other parameters together."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:  # a step without targets on any rank
        return 0.0
    parts = [local(g) for g in grads]
    squares = _square_sums(parts).tolist()  # one wait for the device
    norm = math.sqrt(total_of_parts(squares, grads) if any(isinstance(g, DTensor) for g in grads) else sum(squares))
    if max_norm and norm > max_norm:
        torch._foreach_mul_(parts, max_norm / (norm + 1e-6))
    return norm


def _square_sums(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Sums of squares, float64 [tensors]; no whole tensor is copied in float64 (on a GPU: where all have one dtype)."""
    if tensors[0].is_cuda:  # a few kernels for all tensors: a small model's update is bound by the number of kernels
        return torch.stack(torch._foreach_norm(tensors, 2, torch.float64)).square()
    # In parts that stay in the CPU's cache, which is nine times as fast as whole tensors.
    parts = [tensor.flatten().split(2**16) for tensor in tensors]
    return torch.stack([torch.stack([p.double().square().sum() for p in of_tensor]).sum() for of_tensor in parts])


def lr_at(args: Any, step: int, total: int) -> float:
    """Learning rate of step `step` (from 0) of `total`: linear warm-up to the peak, then constant, cosine or linear.

    args: a configuration with learning_rate (the peak), lr_scheduler_type and warmup_steps.
    """
    peak, warmup_steps = args.learning_rate, args.warmup_steps
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if args.lr_scheduler_type == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, total - warmup_steps))
    return peak * (0.5 * (1 + math.cos(math.pi * progress)) if args.lr_scheduler_type == "cosine" else 1 - progress)


@torch.no_grad()
def ema_update(reference: MaskedDiffusionLM, model: MaskedDiffusionLM, decay: float) -> None:
    """theta_old <- decay theta_old + (1 - decay) theta, in the reference's own dtype."""
    for old, new in zip(reference.own_parameters(), model.own_parameters(), strict=True):
        on_device = old.to(new.device)  # itself, unless it is kept in CPU memory
        # lerp: old + (1 - decay) (new - old)
        on_device.lerp_(new.to(old.dtype), 1 - decay)
        if on_device is not old:
            old.copy_(on_device)
