"""Capped logits c tanh(z / c), as in Gemma's models."""

import torch


def capped(logits: torch.Tensor, cap: float) -> torch.Tensor:
    return (logits / cap).tanh() * cap


def cap_in_place(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """`capped`, overwriting the logits; not differentiable: see `below_cap`."""
    return logits.div_(cap).tanh_().mul_(cap)


def below_cap(gradient: torch.Tensor, z: torch.Tensor, cap: float) -> torch.Tensor:
    """The gradient in logits before the cap, from that in the capped logits z. Overwrites both."""
    return gradient.mul_(z.div_(cap).square_().neg_().add_(1))
