"""Where a policy's layers are and in what precision: kept in CPU memory between uses, or made ready to sample with.

Only the layers move. Embeddings and head stay on the device, since the loss reads the head directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lfpo.models import MaskedDiffusionLM


def frozen_copy_on_cpu(model: MaskedDiffusionLM) -> MaskedDiffusionLM:
    """A frozen copy whose layers live in CPU memory, pinned beside a GPU. A forward brings over one layer at a time and
    lets it go again: it holds one layer on the device, and costs one transfer of them all."""
    homes = {
        id(p): nn.Parameter(_home(p.data, model.device), requires_grad=False)
        for p in model.backbone.model.layers.parameters()
    }
    policy = model.frozen_copy(homes)
    for layer in policy.backbone.model.layers:
        visit = _Visit(layer, policy.device)
        layer.register_forward_pre_hook(visit.come)
        layer.register_forward_hook(visit.go, always_call=True)
    return policy


def _home(weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    home = torch.empty_like(weight, device="cpu", pin_memory=device.type == "cuda")
    return home.copy_(weight)


class _Visit:
    """A layer's stay on the device for one forward; nothing happens where `sampling` has brought it already."""

    def __init__(self, layer: nn.Module, device: torch.device):
        self.slots, self.device = _slots(layer), device
        self.came = False

    def come(self, *_: Any) -> None:
        self.came = all(held[name] is home for held, name, home in self.slots)
        for held, name, home in self.slots if self.came else []:
            held[name] = _frozen(home.detach().to(self.device, non_blocking=True, copy=True))

    def go(self, *_: Any) -> None:
        for held, name, home in self.slots if self.came else []:
            held[name] = home


@contextlib.contextmanager
def sampling(policy: MaskedDiffusionLM, *, cast: bool, bring: bool) -> Iterator[None]:
    """A policy made ready for many forwards without gradients.

    cast: the layers' matrices in bfloat16, as autocast would make them at every forward: the same results, and half
        of the weights' size in copies, which go before gradients come.
    bring: the layers, which live in CPU memory, all on the device.
    """
    slots = _slots(policy.backbone.model.layers)
    try:
        for held, name, home in slots:
            here = home.detach().to(policy.device, non_blocking=True, copy=bring)
            if cast and home.ndim == 2 and home.is_floating_point():
                # On the device; at once with the transfer it would be done on the CPU.
                here = here.to(torch.bfloat16)
            if here.dtype != home.dtype or bring:
                held[name] = _frozen(here)
        yield
    finally:
        for held, name, home in slots:
            held[name] = home


def _slots(module: nn.Module) -> list[tuple[dict[str, Any], str, nn.Parameter]]:
    """Where parameters are looked up, by what name, and what is there."""
    return [(m._parameters, name, p) for m in module.modules() for name, p in m._parameters.items() if p is not None]


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
