"""FSDP2: weights, gradients and optimiser state of the layers split over processes.

Embeddings, head and LoRA factors stay whole on every process (the head is read directly by the fused loss), and their
gradients are summed by `distributed.sum_gradients`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from .models import MaskedDiffusionLM


def shard(policy: MaskedDiffusionLM) -> None:
    """Split each layer's weights over the process group, in place. Parameters are new objects afterwards."""
    from torch.distributed.fsdp import fully_shard

    for layer in policy.backbone.model.layers:
        whole = {p for name, p in layer.named_parameters() if "lora_" in name}
        fully_shard(layer, ignored_params=whole)
    for module in _sharded(policy):
        # Gradients are summed, not averaged: the loss is divided by the normaliser of all processes already.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _sharded(policy: MaskedDiffusionLM) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [m for m in policy.backbone.modules() if isinstance(m, FSDPModule)]


@contextlib.contextmanager
def gathered(policy: MaskedDiffusionLM) -> Iterator[None]:
    """All weights whole on every process meanwhile, so that each may run as many forwards as its rows need."""
    modules = _sharded(policy)
    for module in modules:
        module.unshard()
        module.set_reshard_after_forward(False)
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True)
            module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a sharded one is part of; every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """A whole tensor split the way a parameter is."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    return distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements)
