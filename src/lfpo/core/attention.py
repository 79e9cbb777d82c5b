"""Which tokens attend to which; and bidirectional attention with float32 rotary embeddings, registered with
transformers under one name.

transformers' own code rounds cos and sin to the model's dtype, which changes bfloat16 logits by about 1 %; LLaDA
rotates in float32 (`rope_full_precision`). Here the rotary module returns float32, so queries and keys are rotated in
float32, and the attention function casts them to the value's dtype before the dot products.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "lfpo_bidirectional"
HALF = (torch.float16, torch.bfloat16)
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

    attention_mask: what `Structure.mask` returns; None when every token attends to all.
    """
    dtype = product_dtype(value)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if isinstance(attention_mask, BlockMask):
        kernel: Any = _compiled_flex() if query.is_cuda else flex_attention
        grouped = query.shape[1] != key.shape[1]
        out = kernel(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=grouped)
    else:
        out = _attend(query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


def product_dtype(value: torch.Tensor) -> torch.dtype:
    """The dtype in which attention computes: autocast's, else the values'. They differ over a 4-bit base, whose layers
    return the dtype of their input."""
    kind = value.device.type
    enabled = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if enabled else value.dtype


def mask_bias(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask [..., L] (bool, True: attended) as the kernels take it: as it is on a CPU, on a GPU 0 or -inf in `dtype`
    (`product_dtype`), in aligned rows. All layers use this one tensor; from a bool mask torch would make it again in
    each layer."""
    if not seen.is_cuda:
        return seen
    length = seen.shape[-1]
    padded = F.pad(seen, (0, -length % ALIGNED))
    bias = torch.zeros(padded.shape, dtype=dtype, device=padded.device).masked_fill_(~padded, -torch.inf)
    return bias[..., :length]


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


# Which tokens of a row a token attends to: all; its own block and those before it; those before it; and the doubled
# layout [noised; clean] of training. A rule is a function of token numbers (`sees`). The dense mask and FlexAttention's
# block mask are made from that one.

# (row, head, query, key) -> whether the query attends to the key; the arguments broadcast against each other.
Sees = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Doubled:
    """What a mask of the doubled layout needs beside the real tokens of the clean rows. The noised tokens stand before
    them: those of the rows' last columns, so that a prompt stands there once.

    prompt_B: prompt tokens of each row, int64. noised: columns of noised tokens.
    """

    prompt_B: torch.Tensor
    noised: int


@dataclass(frozen=True)
class Structure:
    """How the tokens of a row attend to each other. Padding is never attended to.

    block_length: a token attends to its own block and to those before it, counted from each row's first real token
        (None: every token attends to all).
    causal: block diffusion over a causal context: a clean token attends to itself and to those before it. Only noised
        tokens attend within blocks, which count from the completion's first token.
    window: over a causal context, how far back tokens see (None: all the way): a clean token itself and `window` - 1
        tokens before it, a noised one its block and `window` - 1 clean tokens before the block.
    doubled: forwards that predict masked tokens run [noised; clean], with each noised token at the position of its
        clean one. A noised token attends to the noised tokens of its own block and to the clean ones before the block,
        a clean token to clean tokens only. So each noised block has the states that it has alone after a clean prefix.
    """

    block_length: int | None = None
    causal: bool = False
    doubled: bool = False
    window: int | None = None

    def positions(self, real_BL: torch.Tensor) -> torch.Tensor:
        """Position ids [B, L], counted from each row's first real token."""
        return (real_BL.long().cumsum(-1) - 1).clamp(min=0)

    def shared(self, prompt_length: int) -> int:
        """Prompt tokens in the block in which the completion begins."""
        return 0 if self.causal or self.block_length is None else prompt_length % self.block_length

    def first_noised(self, prompt_B: torch.Tensor) -> torch.Tensor:
        """The position of a row's first noised token in the doubled layout, [B] int64. prompt_B: its prompt tokens.

        The first block is whole, with its prompt tokens."""
        assert self.block_length is not None
        return prompt_B if self.causal else prompt_B // self.block_length * self.block_length

    def tokens(self, length_B: torch.Tensor, prompt_B: torch.Tensor) -> torch.Tensor:
        """Tokens of a forward over rows of these lengths and prompts, [B]; in the doubled layout a length is that of
        the clean row."""
        return 2 * length_B - self.first_noised(prompt_B) if self.doubled else length_B

    def pairs(self, length_B: torch.Tensor, prompt_B: torch.Tensor) -> torch.Tensor:
        """Pairs of a query and a key that it attends to in rows as in `tokens`, [B] float64."""
        if self.causal:
            clean, completion_B = length_B.double() * (length_B + 1) / 2, length_B - prompt_B
            return clean + self._in_blocks(completion_B) + prompt_B * completion_B.double() if self.doubled else clean
        if self.block_length is None:
            return length_B.double() ** 2
        clean_pairs = self._in_blocks(length_B)
        # A noised token attends to as many tokens as its clean one.
        return 2 * clean_pairs - self._in_blocks(self.first_noised(prompt_B)) if self.doubled else clean_pairs

    def _in_blocks(self, length_B: torch.Tensor) -> torch.Tensor:
        """Pairs in rows where a token attends to its block and to those before it, [B] float64."""
        assert self.block_length is not None
        full_blocks = length_B // self.block_length
        in_full_blocks = self.block_length**2 * (full_blocks * (full_blocks + 1)).double() / 2
        return in_full_blocks + length_B.double() * (length_B % self.block_length)

    def sees(self, real_BL: torch.Tensor, doubled: Doubled | None = None) -> Sees:
        """The rule as a function of the numbers of row, head, query and key; with `doubled` those of the noised columns
        come first. Queries at padding attend to some real token, so that no softmax is empty."""
        position_BL = self.positions(real_BL)
        if doubled is not None:
            return self._sees_doubled(real_BL, position_BL, doubled)
        if self.causal:
            return lambda row, head, query, key: (
                real_BL[row, key] & self._before(position_BL, position_BL, row, query, key)
            )
        if self.block_length is None:
            return lambda row, head, query, key: real_BL[row, key]
        block_BL = position_BL // self.block_length
        return lambda row, head, query, key: real_BL[row, key] & (block_BL[row, key] <= block_BL[row, query])

    def _sees_doubled(self, real_BL: torch.Tensor, position_BL: torch.Tensor, doubled: Doubled) -> Sees:
        assert self.block_length is not None
        noised, start = doubled.noised, real_BL.shape[1] - doubled.noised
        origin = doubled.prompt_B[:, None] if self.causal else 0
        block_BL = (position_BL - origin).div(self.block_length, rounding_mode="floor")
        among_clean_BL = position_BL if self.causal else block_BL
        real, block, order = (torch.cat([x[:, start:], x], dim=1) for x in (real_BL, block_BL, among_clean_BL))
        first = block * self.block_length + origin  # position of the first token of the block

        def sees(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            noised_query, noised_key = query < noised, key < noised
            own, before = block[row, key] == block[row, query], block[row, key] < block[row, query]
            if self.window is not None:
                before = before & self._before(first, order, row, query, key)
            of_noised = noised_query & torch.where(noised_key, own, before)
            of_clean = ~noised_query & ~noised_key & self._before(order, order, row, query, key)
            return real[row, key] & (of_noised | of_clean)

        return sees

    def _before(
        self, of_query: torch.Tensor, of_key: torch.Tensor, row: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        """Whether the key's position is at most the query's, and within the window. of_query, of_key: positions."""
        at_most = of_key[row, key] <= of_query[row, query]
        return at_most if self.window is None else at_most & (of_key[row, key] > of_query[row, query] - self.window)

    def dense(self, real_BL: torch.Tensor, doubled: Doubled | None = None) -> torch.Tensor:
        """Which keys each query attends to, bool [B, L, L] (queries before keys), with `doubled` [B, N + L, N + L]."""
        rows, length = real_BL.shape[0], real_BL.shape[1] + (0 if doubled is None else doubled.noised)
        token = torch.arange(length, device=real_BL.device)
        row = torch.arange(rows, device=real_BL.device)[:, None, None]
        return self.sees(real_BL, doubled)(row, row, token[:, None], token).expand(rows, length, length)

    def flex(self, real_BL: torch.Tensor, doubled: Doubled | None = None) -> BlockMask:
        """The same for FlexAttention, which skips the tiles of 128 x 128 tokens in which nothing is attended to."""
        rows, length = real_BL.shape[0], real_BL.shape[1] + (0 if doubled is None else doubled.noised)
        return create_block_mask(self.sees(real_BL, doubled), rows, None, length, length, device=real_BL.device)

    def mask(
        self, real_BL: torch.Tensor, dtype: torch.dtype, doubled: Doubled | None = None
    ) -> torch.Tensor | BlockMask:
        """The mask as `bidirectional_attention` takes it, for products in `dtype`: [B, 1, 1, L] in full attention; else
        dense [B, 1, L, L] (with `doubled` N + L), or on a GPU in half precision a block mask."""
        if self == FULL:
            return mask_bias(real_BL[:, None, None], dtype)
        if real_BL.is_cuda and dtype in HALF:
            return self.flex(real_BL, doubled)
        return mask_bias(self.dense(real_BL, doubled)[:, None], dtype)


FULL = Structure()
CAUSAL = Structure(causal=True)
