"""Frozen linear layers in 4 bits, by bitsandbytes: NF4 with double quantisation (QLoRA, arXiv 2305.14314).

The matrices of the transformer layers take 0.52 bytes a weight; a forward dequantises one at a time to
`compute_dtype`. Embeddings, head, norms and biases are not quantised.
"""

import logging
from typing import Any

import torch
from torch import nn

from lfpo.config.errors import UserError
from lfpo.models.experts import routers
from lfpo.models.narrow_products import is_slow

NOT_IN_4BIT = "load_in_4bit: bitsandbytes takes linear layers only, and the experts of this model are no such layers"
BLOCK = 64  # weights that share a scale
# peft imports bitsandbytes, which warns on some CPUs of a missing package that would only make it faster.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
# 4 bits, an 8-bit scale for each block, and a 32-bit scale for every 256 of those.
BYTES_PER_WEIGHT = 1 / 2 + 1 / BLOCK + 4 / (BLOCK * 256)


def quantize(backbone: Any, device: torch.device, compute_dtype: torch.dtype) -> None:
    """Replace every linear layer but the head by a 4-bit one, in place. Moves one matrix at a time to `device`. Raises
    UserError as `linear_weights`."""
    for name in linear_weights(backbone):
        quantize_one(backbone, name, backbone.get_parameter(name).data, device, compute_dtype)


def linear_weights(backbone: Any) -> list[str]:
    """Names of the weights that are held in 4 bits: of the linear layers but the head. Raises UserError for experts,
    for a layer whose rows are not a multiple of BLOCK, and where bitsandbytes is missing."""
    bitsandbytes("load_in_4bit")
    if routers(backbone):
        raise UserError(NOT_IN_4BIT)
    linear = {n: m for n, m in backbone.model.layers.named_modules() if type(m) is nn.Linear}
    for name, module in linear.items():
        # On a CPU bitsandbytes (seen in 0.50.2) dequantises a block that spans two rows with the wrong scale.
        if module.in_features % BLOCK:
            raise UserError(f"load_in_4bit: layer {name} has rows of {module.in_features}, not a multiple of {BLOCK}")
    return [f"model.layers.{name}.weight" for name in linear]


def quantize_one(
    backbone: Any, name: str, weight: torch.Tensor, device: torch.device | str, compute_dtype: torch.dtype
) -> None:
    """Replace one linear layer by a 4-bit one that holds `weight`. name: one of `linear_weights`."""
    package, kind = bitsandbytes("load_in_4bit"), {"compress_statistics": True, "quant_type": "nf4"}
    if is_slow(compute_dtype, device):
        compute_dtype = torch.float32
    path = name.removesuffix(".weight")
    linear = backbone.get_submodule(path)
    with torch.device("meta"):
        layer = package.nn.Linear4bit(linear.in_features, linear.out_features, False, compute_dtype, **kind)
    # `to` quantises.
    layer.weight = package.nn.Params4bit(weight, requires_grad=False, module=layer, **kind).to(device)
    layer.bias = linear.bias
    # On some CPUs a forward without gradients would repack the weights for a kernel that has no backward pass.
    layer.support_avx512bf16_for_cpu = False
    backbone.set_submodule(path, layer)
    backbone.is_loaded_in_4bit = True  # read by peft


def dequantized(parameter: torch.Tensor) -> torch.Tensor:
    """A quantised parameter in its original shape and dtype; any other parameter unchanged."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter
    return bitsandbytes("load_in_4bit").functional.dequantize_4bit(parameter.data, state)


def bitsandbytes(feature: str) -> Any:
    """The package bitsandbytes. Raises UserError, naming the `feature` that needs it, where it is not installed."""
    try:
        import bitsandbytes as package
    except ImportError as error:
        raise UserError(f"{feature} needs the package bitsandbytes: pip install bitsandbytes") from error
    return package


def original_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of a parameter before quantisation (its own shape where it is not quantised)."""
    state = getattr(parameter, "quant_state", None)
    return parameter.shape if state is None else torch.Size(state.shape)
