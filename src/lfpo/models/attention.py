"""Bidirectional attention with float32 rotary embeddings, registered with transformers under one name.

transformers' own code rounds cos and sin to the model's dtype, which changes bfloat16 logits by about 1 %; LLaDA
rotates in float32 (`rope_full_precision`). Here the rotary module returns float32, so queries and keys are rotated in
float32, and the attention function casts them to the value's dtype before the dot products.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "lfpo_bidirectional"


@dataclass(frozen=True)
class Packed:
    """N rows concatenated into one sequence of T tokens, without padding.

    lengths: tokens of each row. starts [N + 1]: index of each row's first token, then T; int32, on the model's device.
    """

    lengths: tuple[int, ...]
    starts: torch.Tensor


def bidirectional_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: Packed | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention, never causal. query [B, H, L, D], key and value [B, H_kv, L, D] -> [B, L, H, D] in
    the value's dtype.

    attention_mask: bool, broadcast to [B, 1, L, L], True where a key may be attended; None when nothing is padded.
    packed: the rows that the single sequence (B = 1) is made of; a token attends to its own row only.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)
    if packed is not None:
        return _packed_attention(query, key, value, packed, scaling), None
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=False,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.transpose(1, 2).contiguous(), None


def _packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: Packed, scaling: float | None
) -> torch.Tensor:
    """query [1, H, T, D], key and value [1, H_kv, T, D] -> [1, T, H, D]."""
    grouped = query.shape[1] != key.shape[1]
    if _varlen_supports(query):
        from torch.nn.attention.varlen import varlen_attn

        longest = max(packed.lengths)
        options: dict[str, Any] = {}
        if grouped and _takes_gqa(varlen_attn):
            options = {"enable_gqa": True}
        elif grouped:  # torch 2.11 has no grouped-query attention here: repeat the key and value heads
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        out: Any = varlen_attn(q, k, v, packed.starts, packed.starts, longest, longest, scale=scaling, **options)
        return out[None]
    rows = zip(*(x.split(list(packed.lengths), dim=2) for x in (query, key, value)), strict=True)
    parts = [F.scaled_dot_product_attention(q, k, v, scale=scaling, enable_gqa=grouped) for q, k, v in rows]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


@functools.cache
def _takes_gqa(kernel: Callable[..., Any]) -> bool:
    return "enable_gqa" in inspect.signature(kernel).parameters


def _varlen_supports(query: torch.Tensor) -> bool:
    """torch.nn.attention.varlen is flash attention: CUDA, half precision."""
    return query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)


class FullPrecisionRope(nn.Module):
    """Wraps a transformers rotary module so that cos and sin stay float32 in a model of any dtype."""

    def __init__(self, rope: nn.Module):
        super().__init__()
        self.rope = rope

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # The wrapped module reads only device and dtype from its first argument.
        cos, sin = self.rope(x.new_empty(0, dtype=torch.float32), position_ids)
        return cos, sin


AttentionInterface.register(NAME, bidirectional_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
