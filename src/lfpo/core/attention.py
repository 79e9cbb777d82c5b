"""Bidirectional attention with float32 rotary embeddings, registered with transformers under one name.

transformers' own code rounds cos and sin to the model's dtype, which changes bfloat16 logits by about 1 %; LLaDA
rotates in float32 (`rope_full_precision`). Here the rotary module returns float32, so queries and keys are rotated in
float32, and the attention function casts them to the value's dtype before the dot products.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "lfpo_bidirectional"
HALF = (torch.float16, torch.bfloat16)
SHORT = 256  # tokens of a row
ALIGNED = 8  # the memory-efficient kernel copies masks whose rows are not a multiple of this


def bidirectional_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | None,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention, never causal. query [B, H, L, D], key and value [B, H_kv, L, D] -> [B, L, H, D] in
    `product_dtype`.

    attention_mask: what lfpo.core.structure.Structure.mask returns; None when every token attends to all.
    """
    dtype = product_dtype(value)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if isinstance(attention_mask, BlockMask):
        kernel: Any = _compiled_flex() if query.is_cuda else flex_attention
        grouped = query.shape[1] != key.shape[1]
        out = kernel(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=grouped)
    elif _short_on_cpu(key):
        with torch.autocast("cpu", enabled=False):
            out = _attend(query.float(), key.float(), value.float(), attention_mask, scaling).to(dtype)
    else:
        out = _attend(query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


def _short_on_cpu(key: torch.Tensor) -> bool:
    """Whether float32 is the fast dtype: a CPU's backward pass in half precision takes three times as long for rows of
    60 tokens, and 1.3 times less for rows of 400. Rollouts do the same, so that an update sees their probabilities."""
    return key.device.type == "cpu" and key.shape[2] < SHORT and key.dtype in HALF


def product_dtype(value: torch.Tensor) -> torch.dtype:
    """The dtype in which attention computes: autocast's, else the values'. They differ over a 4-bit base, whose layers
    return the dtype of their input."""
    kind = value.device.type
    enabled = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if enabled else value.dtype


def backend(device: torch.device, dtype: torch.dtype, width: int, *, masked: bool) -> SDPBackend | None:
    """The kernel that attention uses for values of this dtype and head width; None leaves it to torch.

    A CPU has one kernel for all cases. On a GPU, half precision without a mask takes flash attention, which supports
    neither masks nor float32; those take the memory-efficient kernel. float64 and head widths that are not a multiple
    of ALIGNED have no kernel of this kind and take plain products. cuDNN's attention is never used: it builds a plan
    for each new shape (tens of milliseconds), and rollouts and updates meet many shapes.
    """
    if device.type != "cuda":
        return None
    if dtype == torch.float64 or width % ALIGNED:
        return SDPBackend.MATH
    return SDPBackend.EFFICIENT_ATTENTION if masked or dtype not in HALF else SDPBackend.FLASH_ATTENTION


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """query [B, H, W, D], key and value [B, H_kv, L, D], mask [B, 1, 1 or W, L] or None -> [B, H, W, D]."""
    chosen = backend(query.device, value.dtype, query.shape[-1], masked=mask is not None)
    grouped = query.shape[1] != key.shape[1]
    shape = query.shape
    if grouped and chosen is SDPBackend.EFFICIENT_ATTENTION:
        # This kernel wants as many heads in keys as in queries. Where the queries of a row see the same keys, or are
        # few beside them, the heads that share keys become more queries of one head, and no key is copied.
        if mask is None or mask.shape[2] == 1 or shape[2] < key.shape[2]:
            query = query.reshape(shape[0], key.shape[1], -1, shape[-1])
            if mask is not None and mask.shape[2] > 1:
                mask = mask.repeat(1, 1, query.shape[2] // shape[2], 1)
        else:
            key, value = (x.repeat_interleave(shape[1] // x.shape[1], dim=1) for x in (key, value))
        grouped = False
    with contextlib.nullcontext() if chosen is None else sdpa_kernel(chosen):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)
    return out.reshape(shape)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """FlexAttention as a kernel; uncompiled it would hold all scores in memory."""
    return torch.compile(flex_attention, dynamic=True)


class FullPrecisionRope(nn.Module):
    """Wraps a transformers rotary module so that cos and sin stay float32 in a model of any dtype."""

    def __init__(self, rope: nn.Module):
        super().__init__()
        self.rope = rope

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, *kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        # The wrapped module reads only device and dtype from its first argument. kind: of layers, where they differ.
        cos, sin = self.rope(x.new_empty(0, dtype=torch.float32), position_ids, *kind)
        return cos, sin


AttentionInterface.register(NAME, bidirectional_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
