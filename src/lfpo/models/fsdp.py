"""FSDP2: weights, gradients and optimiser state of the layers split over processes.

Embeddings, head and LoRA factors stay whole on every process (the head is read directly by the fused loss), and their
gradients are summed by `distributed.sum_gradients`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lfpo.models import MaskedDiffusionLM


def shard(policy: MaskedDiffusionLM) -> None:
    """Split each layer's weights over the process group, in place. Parameters are new objects afterwards."""
    from torch.distributed.fsdp import fully_shard

    for layer in policy.backbone.model.layers:
        whole = {p for name, p in layer.named_parameters() if "lora_" in name}
        # Said outright: by default a module that no other holds, as each layer is here, stays whole after a forward.
        fully_shard(layer, ignored_params=whole, reshard_after_forward=True)
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
