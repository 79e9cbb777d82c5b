"""Products of bfloat16 layers on a CPU without AVX512, where torch has no fast ones: in float32.

There torch's own take 5 times as long as float32 in the forward pass and 400 times in the backward pass. Here weights
are cast in slices, so that no float32 copy of a matrix is held. Sums are float32 and results bfloat16, as in torch's
products.
"""

import functools
from typing import Any

import torch
from torch import nn

from lfpo.core.head import logits, product


def run_in_float32(backbone: nn.Module) -> None:
    """Change the linear layers of a backbone, in place: products that are slow run in float32 (see `is_slow`)."""
    for layer in backbone.modules():
        if type(layer) is nn.Linear:
            # A partial, not a bound function: a deep copy of the module then refers to its own copy.
            layer.forward = functools.partial(_linear, layer)  # type: ignore[method-assign]


def _linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.bfloat16 or not is_slow(layer.weight.dtype, layer.weight.device):
        return nn.Linear.forward(layer, x)
    out = logits(x, layer.weight, "float32").to(x.dtype)
    return out if layer.bias is None else out + layer.bias


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] @ b [K, N], both of one dtype; not differentiable."""
    return product(a, b, "float32").to(a.dtype) if is_slow(b.dtype, b.device) else a @ b


def is_slow(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether torch's products are slow: bfloat16, on a CPU for which torch has no fast ones."""
    return dtype == torch.bfloat16 and torch.device(device).type == "cpu" and not has_bfloat16()


@functools.cache
def has_bfloat16() -> bool:
    """Whether torch has fast products of bfloat16 numbers on this CPU."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
