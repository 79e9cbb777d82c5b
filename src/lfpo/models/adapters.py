"""Selects the LoRA adapter that a backbone's forward uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
