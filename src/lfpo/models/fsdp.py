"""FSDP2: splits the layers' weights, gradients and optimiser state over ranks.

Embeddings, head and LoRA factors stay whole on every rank, because the fused loss reads the head directly;
`distributed.sum_gradients` sums their gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lfpo.models import MaskedDiffusionLM


def shard(policy: MaskedDiffusionLM) -> None:
    """Split each layer's weights over the ranks, in place. Replaces the layers' parameters by DTensors, so an optimiser
    must be built afterwards."""
    from torch.distributed.fsdp import fully_shard

    for layer in policy.backbone.model.layers:
        whole = {p for name, p in layer.named_parameters() if "lora_" in name}
        # By default FSDP keeps root modules gathered after a forward, and here each layer is a root.
        fully_shard(layer, ignored_params=whole, reshard_after_forward=True)
    for module in _sharded(policy):
        # Sum gradients, do not average them: the loss is already divided by the normaliser of all ranks.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _sharded(policy: MaskedDiffusionLM) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [m for m in policy.backbone.modules() if isinstance(m, FSDPModule)]


@contextlib.contextmanager
def gathered(policy: MaskedDiffusionLM) -> Iterator[None]:
    """Keep all weights whole on every rank inside the block, so that ranks may run different numbers of forwards."""
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
