"""Bidirectional attention with float32 rotary embeddings, registered with transformers under one name.

Stock code rounds cos and sin to the model's dtype, which in bfloat16 moves logits by about 1 %; LLaDA rotates in
float32 (`rope_full_precision`). Here the rotary module returns float32, queries and keys are therefore rotated in
float32, and this attention function casts them back to the value's dtype before the dot products.
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
    """N rows that lie end to end in one sequence of T tokens. lengths: of each. starts [N + 1]: where they begin, int32
    on the device, and T."""

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
    """Scaled dot-product attention, never causal. query [B, H, L, D], key and value [B, H_kv, L, D] -> [B, L, H, D].

    attention_mask: bool, broadcast to [B, 1, L, L], True where a key may be seen; None when nothing is padded.
    packed: rows that B = 1 holds end to end, each of which sees itself alone; there is no padding then.
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
    """[1, H, T, D] and [1, H_kv, T, D] -> [1, T, H, D]."""
    grouped = query.shape[1] != key.shape[1]
    if _has_kernel(query):
        from torch.nn.attention.varlen import varlen_attn

        longest = max(packed.lengths)
        more: dict[str, Any] = {}
        if grouped and _shares_keys(varlen_attn):
            more = {"enable_gqa": True}
        elif grouped:  # torch 2.11 does not share keys among heads
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        out: Any = varlen_attn(q, k, v, packed.starts, packed.starts, longest, longest, scale=scaling, **more)
        return out[None]
    rows = zip(*(x.split(list(packed.lengths), dim=2) for x in (query, key, value)), strict=True)
    parts = [F.scaled_dot_product_attention(q, k, v, scale=scaling, enable_gqa=grouped) for q, k, v in rows]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


@functools.cache
def _shares_keys(kernel: Callable[..., Any]) -> bool:
    return "enable_gqa" in inspect.signature(kernel).parameters


def _has_kernel(query: torch.Tensor) -> bool:
    """Whether torch's attention over rows of different lengths takes this; it is flash attention's, on a GPU."""
    return query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)


class FullPrecisionRope(nn.Module):
    """Wraps a transformers rotary module so that cos and sin stay float32 whatever the model's dtype."""

    def __init__(self, rope: nn.Module):
        super().__init__()
        self.rope = rope

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # The wrapped module takes only device and dtype from its first argument.
        cos, sin = self.rope(x.new_empty(0, dtype=torch.float32), position_ids)
        return cos, sin


AttentionInterface.register(NAME, bidirectional_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
