"""Random cases of the rectified loss, the plain form that the fused one is compared with, and chunk sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lfpo.contrib.canvases.cap import Cap
from lfpo.core.fused import CHUNK_ELEMENTS, rectified_sum
from lfpo.core.rectified import rectified_loss


def chunks_of(elements: int) -> Any:
    """Within it, no more than so many logits are held at once."""
    return mock.patch.dict(CHUNK_ELEMENTS, cpu=elements)


@dataclass
class Case:
    """Arguments of rectified_sum; `head_ref` is `head` itself where the policies share it."""

    hidden: torch.Tensor
    hidden_ref: torch.Tensor
    head: torch.Tensor
    head_ref: torch.Tensor
    y: torch.Tensor
    r: torch.Tensor
    weight: torch.Tensor

    def to(self, dtype: torch.dtype) -> Case:
        """States and heads rounded to `dtype`, the rest as it is."""
        hidden, hidden_ref, head = self.hidden.to(dtype), self.hidden_ref.to(dtype), self.head.to(dtype)
        head_ref = head if self.head_ref is self.head else self.head_ref.to(dtype)
        return replace(self, hidden=hidden, hidden_ref=hidden_ref, head=head, head_ref=head_ref)


def random_case(
    heads: str = "own", rewards: str = "anywhere", *, seed: int = 0, t: int = 7, v: int = 11, d: int = 5
) -> Case:
    g = torch.Generator().manual_seed(seed)
    hidden, move = (torch.randn(t, d, generator=g, dtype=torch.float64) for _ in range(2))
    head, turn = (torch.randn(v, d, generator=g, dtype=torch.float64) for _ in range(2))
    r, weight = (torch.rand(t, generator=g, dtype=torch.float64) for _ in range(2))
    binary = (r > 0.5).double()
    kinds = {"anywhere": r, "binary": binary, "ones": torch.ones_like(r), "zeros": torch.zeros_like(r)}
    kinds["mixed"] = torch.where(torch.arange(t) % 2 == 0, binary, r)
    head_ref = head if heads == "shared" else head + 0.3 * turn
    y = torch.randint(v, (t,), generator=g)
    return Case(hidden, hidden + 0.5 * move, head, head_ref, y, kinds[rewards], 0.5 + weight)


Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def within(products: torch.Tensor, logit_map: Cap | None) -> torch.Tensor:
    """The logits under a cap, if there is one."""
    return products if logit_map is None else logit_map(products)


def plain(case: Case, **knobs: Any) -> Result:
    """Loss and its gradients in states and head, from all logits; the reference's logits are constants."""
    hidden, head = case.hidden.detach().requires_grad_(), case.head.detach().requires_grad_()
    cap = knobs.pop("logit_map", None)
    z, z_ref = within(hidden @ head.T, cap), within(case.hidden_ref @ case.head_ref.T, cap)
    loss = (case.weight * rectified_loss(z, z_ref, case.y, case.r, **knobs)).sum()
    in_hidden, in_head = torch.autograd.grad(loss, (hidden, head))
    return loss.detach(), in_hidden, in_head


def fused(case: Case, *, upstream: float = 1.0, **knobs: Any) -> Result:
    hidden, head = case.hidden.detach().requires_grad_(), case.head.detach().requires_grad_()
    head_ref = head if case.head_ref is case.head else case.head_ref
    loss = rectified_sum(hidden, case.hidden_ref, head, head_ref, case.y, case.r, token_weight_T=case.weight, **knobs)
    in_hidden, in_head = torch.autograd.grad(upstream * loss, (hidden, head))
    return loss.detach(), in_hidden, in_head


class Products(TorchDispatchMode):
    """Shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("mm", "addmm", "addmm_"):
            self.shapes.append(tuple(out.shape))
        return out


def widest(products: Products, vocab_size: int) -> int:
    """Most tokens of a product whose columns are the vocabulary."""
    return max(rows for rows, *columns in products.shapes if columns == [vocab_size])
