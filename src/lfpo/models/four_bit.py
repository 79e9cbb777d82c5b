"""Frozen linear layers in 4 bits, by bitsandbytes: NF4 with double quantisation (QLoRA, arXiv 2305.14314).

The layers' matrices shrink to 0.52 bytes a number and are turned back into `compute_dtype`, one at a time, where they
are used. Embeddings, head, norms and biases stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lfpo.base.errors import UserError

BLOCK = 64  # numbers that share a scale
# 4 bits, a scale of 8 bits for each block, and one of 32 bits for 256 of those scales.
BYTES = 1 / 2 + 1 / BLOCK + 4 / (BLOCK * 256)


def quantize(backbone: Any, device: torch.device, compute_dtype: torch.dtype) -> None:
    """Replace every linear layer but the head, in place; each is on the device alone when its turn comes.

    Raises UserError where bitsandbytes is missing, and for a layer it would garble.
    """
    package = bitsandbytes("load_in_4bit")
    for name, module in backbone.model.layers.named_modules():
        # A block that goes on in the next row is read with the wrong scale on a CPU (seen in 0.50.2).
        if type(module) is nn.Linear and module.in_features % BLOCK:
            raise UserError(
                f"load_in_4bit: layer {name} has rows of {module.in_features} numbers, no multiple of the {BLOCK} that "
                "share a scale; leave this model as it is"
            )
    for block in backbone.model.layers.modules():
        for name, module in block.named_children():
            if type(module) is nn.Linear:
                setattr(block, name, _quantized(package, module, device, compute_dtype))
    backbone.is_loaded_in_4bit = True  # peft looks for it


def _quantized(package: Any, linear: nn.Linear, device: torch.device, compute_dtype: torch.dtype) -> nn.Module:
    kind = {"compress_statistics": True, "quant_type": "nf4"}
    with torch.device("meta"):
        made = package.nn.Linear4bit(linear.in_features, linear.out_features, False, compute_dtype, **kind)
    # Quantised on its way to the device.
    made.weight = package.nn.Params4bit(linear.weight.data, requires_grad=False, module=made, **kind).to(device)
    made.bias = linear.bias
    # On some CPUs a forward without gradients would repack the weights for a kernel that has no backward pass.
    made.support_avx512bf16_for_cpu = False
    return made


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Of the matrix that a parameter stands for."""
    state = getattr(parameter, "quant_state", None)
    return parameter.shape if state is None else torch.Size(state.shape)


def plain(parameter: torch.Tensor) -> torch.Tensor:
    """The matrix that a parameter stands for, in the dtype it had before it was quantised."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter
    return bitsandbytes("load_in_4bit").functional.dequantize_4bit(parameter.data, state)


def bitsandbytes(wanted: str) -> Any:
    """The package; a UserError that says what needs it where it is not installed."""
    try:
        import bitsandbytes as package
    except ImportError as error:
        raise UserError(f"{wanted} needs the package bitsandbytes: pip install bitsandbytes") from error
    return package
