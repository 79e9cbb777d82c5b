"""Which LoRA adapter a backbone's forwards use; lfpo.models.lora makes the adapters."""

import contextlib
from collections.abc import Iterator

from torch import nn

from lfpo.core.model import CURRENT


def switch_adapter(backbone: nn.Module, adapter: str) -> None:
    """Activate `adapter` (BASE: none) in every LoRA layer that has one of this name, and no adapter in the others. Of
    all adapters only CURRENT requires gradients."""
    from peft.tuners.lora import LoraLayer

    for layer in backbone.modules():
        if isinstance(layer, LoraLayer):
            has_adapter = adapter in layer.lora_A
            layer.enable_adapters(has_adapter)
            if has_adapter:
                layer.set_adapter(adapter, inference_mode=adapter != CURRENT)


@contextlib.contextmanager
def using_adapter(backbone: nn.Module, adapter: str) -> Iterator[None]:
    """In the block `adapter` is active, after it CURRENT."""
    switch_adapter(backbone, adapter)
    try:
        yield
    finally:
        switch_adapter(backbone, CURRENT)
