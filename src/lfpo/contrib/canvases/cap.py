"""Capped logits c tanh(z / c), as in Gemma's models."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Cap:
    """A LogitMap (lfpo.core.head): makes c tanh(z / c) of products z with the head. cap: c."""

    cap: float

    def __call__(self, products: torch.Tensor) -> torch.Tensor:
        return (products / self.cap).tanh() * self.cap

    def in_place(self, products: torch.Tensor) -> torch.Tensor:
        return products.div_(self.cap).tanh_().mul_(self.cap)

    def pull_back(self, gradient: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return gradient.mul_(logits.div_(self.cap).square_().neg_().add_(1))
