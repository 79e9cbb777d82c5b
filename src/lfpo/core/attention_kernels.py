"""The kernels of attention on a GPU, and FlexAttention for block masks."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

HALF = (torch.float16, torch.bfloat16)
ALIGNED = 8  # the memory-efficient kernel copies masks whose rows are not a multiple of this


def backend(dtype: torch.dtype, width: int, *, masked: bool) -> SDPBackend:
    """The kernel that attention uses on a GPU for values of this dtype and head width.

    Half precision without a mask takes flash attention, which supports neither masks nor float32; those take the
    memory-efficient kernel. float64 and head widths that are not a multiple of ALIGNED have no kernel of this kind and
    take plain products. cuDNN's attention is never used: it builds a plan for each new shape (tens of milliseconds),
    and rollouts and updates meet many shapes.
    """
    if dtype == torch.float64 or width % ALIGNED:
        return SDPBackend.MATH
    return SDPBackend.EFFICIENT_ATTENTION if masked or dtype not in HALF else SDPBackend.FLASH_ATTENTION


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | BlockMask | None,
    scaling: float | None,
) -> torch.Tensor:
    """query [B, H, W, D], key and value [B, H_kv, L, D], mask [B, 1, 1 or W, L], a block mask or None -> [B, H, W, D].
    On a GPU, or on a CPU for a block mask, where it is slow."""
    grouped = query.shape[1] != key.shape[1]
    if isinstance(mask, BlockMask):
        flexible: Any = _compiled_flex() if query.is_cuda else flex_attention
        return flexible(query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped)
    kernel = backend(value.dtype, query.shape[-1], masked=mask is not None)
    shape = query.shape
    if grouped and kernel is SDPBackend.EFFICIENT_ATTENTION:
        # This kernel wants as many heads in keys as in queries. Where the queries of a row see the same keys, or are
        # few beside them, the heads that share keys become more queries of one head, and no key is copied.
        if mask is None or mask.shape[2] == 1 or shape[2] < key.shape[2]:
            query = query.reshape(shape[0], key.shape[1], -1, shape[-1])
            if mask is not None and mask.shape[2] > 1:
                mask = mask.repeat(1, 1, query.shape[2] // shape[2], 1)
        else:
            key, value = (x.repeat_interleave(shape[1] // x.shape[1], dim=1) for x in (key, value))
        grouped = False
    with sdpa_kernel(kernel):
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)
    return out.reshape(shape)


@functools.cache
def _compiled_flex() -> Callable[..., object]:
    """FlexAttention as a kernel; uncompiled it would hold all scores in memory."""
    return torch.compile(flex_attention, dynamic=True)
