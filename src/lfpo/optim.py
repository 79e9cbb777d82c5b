"""Optimiser, learning rate schedule and gradient clipping, shared by supervised and reinforcement training."""

from __future__ import annotations

import math

import torch
from torch import nn


def build_adamw(
    model: nn.Module, *, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; norms and biases (vectors) are not decayed."""
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    # Layers apart from the rest: they are what FSDP splits, and one group cannot hold split and whole parameters.
    groups = [
        {
            "params": [p for n, p in trainable if ("layers." in n) == in_layers and (p.ndim >= 2) == matrix],
            "weight_decay": weight_decay if matrix else 0.0,
        }
        for in_layers in (True, False)
        for matrix in (True, False)
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=betas, fused=True)


def lr_at(step: int, *, total: int, peak: float, schedule: str, warmup_steps: int) -> float:
    """Learning rate of optimiser step `step` (from 0) of `total`: linear warm-up, then constant, cosine or linear."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, total - warmup_steps))
    return peak * (0.5 * (1 + math.cos(math.pi * progress)) if schedule == "cosine" else 1 - progress)


def set_lr(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
