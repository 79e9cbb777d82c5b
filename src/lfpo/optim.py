"""Optimiser, learning rate schedule and gradient clipping, shared by supervised and reinforcement training."""

from __future__ import annotations

import math

import torch
from torch import nn


def build_adamw(
    model: nn.Module, *, learning_rate: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; norms and biases (vectors) are not decayed."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
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
