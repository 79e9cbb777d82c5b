"""Buffers of a model that its checkpoints hold."""

import torch
from torch import nn


def saved_buffers(backbone: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Names and values of the buffers that checkpoints hold, such as the bias of a router. They are float32 in a model
    of any dtype, are not trained and not split."""
    return [
        (f"{path}.{name}", buffer)
        for path, module in backbone.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
