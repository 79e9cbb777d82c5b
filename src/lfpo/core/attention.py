"""Bidirectional attention with float32 rotary embeddings, registered with transformers under one name.

transformers' own code rounds cos and sin to the model's dtype, which changes bfloat16 logits by about 1 %; LLaDA
rotates in float32 (`rope_full_precision`). Here the rotary module returns float32, so queries and keys are rotated in
float32, and the attention function casts them to the value's dtype before the dot products.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from lfpo.core.attention_kernels import HALF, attend

NAME = "lfpo_bidirectional"
SHORT = 256  # rows of fewer tokens are short (see _short_on_cpu)


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
    `product_dtype`. Short rows in half precision are computed in float32 on a CPU.

    attention_mask: what lfpo.core.structure.Structure.mask returns; None when every token attends to all.
    """
    dtype = product_dtype(value)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.device.type == "cuda" or isinstance(attention_mask, BlockMask):
        out = attend(query, key, value, attention_mask, scaling)
    elif _short_on_cpu(key):
        with torch.autocast("cpu", enabled=False):
            out = _attend_on_cpu(query.float(), key.float(), value.float(), attention_mask, scaling).to(dtype)
    else:
        out = _attend_on_cpu(query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


def _attend_on_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """See `attend`; a CPU has one kernel for all cases."""
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)


def _short_on_cpu(key: torch.Tensor) -> bool:
    """Whether attention in half precision computes in float32: for short rows on a CPU.

    There the backward pass in bfloat16 takes three times as long as in float32 for rows of 60 tokens, and 0.75 times as
    long for rows of 400. Forwards without gradients do the same, so that updates and rollouts agree on probabilities.
    """
    return key.device.type == "cpu" and key.shape[2] < SHORT and key.dtype in HALF


def product_dtype(value: torch.Tensor) -> torch.dtype:
    """The dtype in which attention computes: autocast's, else the values'. They differ over a 4-bit base, whose layers
    return the dtype of their input."""
    kind = value.device.type
    enabled = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if enabled else value.dtype


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
