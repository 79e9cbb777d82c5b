"""Which LoRA adapter of a backbone a forward runs with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from lfpo.models.roles import CURRENT


@contextlib.contextmanager
def using(backbone: nn.Module, adapter: str) -> Iterator[None]:
    """Run with another adapter than the current one ("base": with none), then turn back. The current one is left as
    trainable as it was: the backward pass needs it so."""
    _switch(backbone, adapter)
    try:
        yield
    finally:
        _switch(backbone, CURRENT)


def _switch(backbone: nn.Module, adapter: str) -> None:
    for layer in _layers(backbone):
        if adapter in layer.lora_A:
            layer.enable_adapters(True)
            layer.set_adapter(adapter, inference_mode=adapter != CURRENT)
        else:
            layer.enable_adapters(False)


def _layers(backbone: nn.Module) -> list[Any]:
    from peft.tuners.lora import LoraLayer

    return [m for m in backbone.modules() if isinstance(m, LoraLayer)]
