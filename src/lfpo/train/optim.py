"""AdamW, one step of it, and the learning rate schedule, for supervised and reinforcement training.

Learning rates are per optimiser step. Moments take 8 bytes a parameter in float32 and about 2 in 8 bits, where each
block of 256 numbers shares a float32 scale (arXiv 2110.02861).
Functions raise UserError where bitsandbytes is missing or cannot serve.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lfpo.base import distributed
from lfpo.config.errors import UserError
from lfpo.config.training import Optim
from lfpo.models.four_bit import bitsandbytes

BLOCK = 256  # numbers that share a scale, in bitsandbytes


def build_adamw(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; weight decay applies to matrices, not to norms and biases.

    args: a configuration with learning_rate, weight_decay, adam_beta1, adam_beta2, and optim: torch's fused AdamW, or
        bitsandbytes' with 8-bit moments, with moments that the driver moves to CPU memory when the GPU is full
        ("paged"), or with both.
    Raises UserError where bitsandbytes is missing, and for paging without a GPU.
    """
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    # The order of groups numbers the parameters in checkpoints.
    groups = [
        {
            "params": [p for n, p in trainable if ("layers." in n) == in_layers and (p.ndim >= 2) == matrix],
            "weight_decay": args.weight_decay if matrix else 0.0,
        }
        for in_layers in (True, False)
        for matrix in (True, False)
    ]
    groups = [g for g in groups if g["params"]]
    optim, given = args.optim, {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2)}
    if optim == "adamw_torch":
        return torch.optim.AdamW(groups, **given, fused=True)
    paged = optim.startswith("paged")
    if paged and trainable[0][1].device.type != "cuda":
        raise UserError(f"optim {optim!r} needs a GPU, whose memory it pages; without a GPU take adamw_8bit")
    library = bitsandbytes(f"optim {optim!r}").optim
    return library.AdamW(groups, **given, optim_bits=8 if "8bit" in optim else 32, is_paged=paged)


def moment_bytes(optim: Optim) -> float:
    """Bytes that both moments of one parameter take."""
    return 2 * (1 + 4 / BLOCK) if "8bit" in optim else 8


def step_if_finite(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    loss: float,
    max_grad_norm: float,
    event: Callable[[str], None] = lambda name: None,
) -> tuple[float, float, bool]:
    """End an optimiser step: sum loss and gradients over ranks, clip, step where both are finite, drop the gradients.

    loss: this rank's part. max_grad_norm: 0 does not clip. event: told on_pre_optimizer_step and on_optimizer_step of a
    step that is taken, while its gradients are there.
    Returns the summed loss, the gradients' norm before clipping, and whether the step was taken.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = distributed.sum_number(loss)
    distributed.sum_gradients(parameters)
    norm = distributed.clip_gradients(parameters, max_grad_norm)
    finite = math.isfinite(norm) and math.isfinite(loss)
    if finite:
        event("on_pre_optimizer_step")
        optimizer.step()
        event("on_optimizer_step")
    optimizer.zero_grad()
    return loss, norm, finite


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


def set_lr(optimizer: torch.optim.Optimizer, args: Any, step: int, total: int) -> float:
    """Set the learning rate of step `step` of `total`, and return it."""
    lr = lr_at(args, step, total)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr
