"""LoRA layers of a backbone: which adapter a forward uses, and what an adapter adds to a parameter.

peft wraps a linear layer once, and the experts of a layer once for each parameter that is adapted, one wrapper inside
the other.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lfpo.models.roles import CURRENT


@contextlib.contextmanager
def use_adapter(backbone: nn.Module, adapter: str) -> Iterator[None]:
    """Run the block with `adapter` (BASE: without any), then switch back to CURRENT, which is trainable again."""
    switch_adapter(backbone, adapter)
    try:
        yield
    finally:
        switch_adapter(backbone, CURRENT)


def switch_adapter(backbone: nn.Module, adapter: str) -> None:
    """Activate `adapter` in every LoRA layer that has one of this name, and no adapter in the others.

    Of all adapters only CURRENT requires gradients.
    """
    from peft.tuners.lora import LoraLayer

    for layer in backbone.modules():
        if isinstance(layer, LoraLayer):
            found = adapter in layer.lora_A
            layer.enable_adapters(found)
            if found:
                layer.set_adapter(adapter, inference_mode=adapter != CURRENT)


def base_layer(module: Any) -> Any:
    """The layer that peft has wrapped; `module` itself where it has wrapped none."""
    return base_layer(module.base_layer) if hasattr(module, "base_layer") else module


def wrapper_of(module: Any, name: str) -> Any | None:
    """The LoRA layer that adapts the parameter `name` of a wrapped layer; None if there is none."""
    while hasattr(module, "base_layer"):
        if getattr(module, "parameter_name", "weight") == name:
            return module
        module = module.base_layer
    return None


def stacked_factors(wrapper: Any, adapter: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A [E, r, inputs] and B [E, outputs, r] of the experts' matrices [E, outputs, inputs]. peft (0.20 and later) holds
    A as [E r, inputs] and B as [outputs, r E]."""
    a, b = wrapper.lora_A[adapter].weight, wrapper.lora_B[adapter].weight
    experts, rank = wrapper.num_experts, wrapper.r[adapter]
    return a.view(experts, rank, -1), b.view(-1, rank, experts).permute(2, 0, 1)


def added(wrapper: Any, adapter: str) -> torch.Tensor:
    """What an adapter adds to the parameter that `wrapper` adapts, in the dtype of its factors."""
    if not hasattr(wrapper, "num_experts"):
        delta: torch.Tensor = wrapper.get_delta_weight(adapter)
        return delta
    a_ERD, b_EOR = stacked_factors(wrapper, adapter)
    return wrapper.scaling[adapter] * (b_EOR @ a_ERD)
