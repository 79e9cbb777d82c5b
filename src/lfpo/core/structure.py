"""Which tokens of a row a token attends to: all; its own block and those before it; those before it; and the doubled
layout [noised; clean] of training.

A rule is a function of token numbers (`sees`). The dense mask and FlexAttention's block mask are made from that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from lfpo.core.attention_kernels import ALIGNED, HALF


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
    doubled: forwards that predict masked tokens run [noised; clean], with each noised token at the position of its
        clean one. A noised token attends to the noised tokens of its own block and to the clean ones before the block,
        a clean token to clean tokens only. So each noised block has the states that it has alone after a clean prefix.
    """

    block_length: int | None = None
    causal: bool = False
    doubled: bool = False

    def near(self, query_position: torch.Tensor, key_position: torch.Tensor) -> torch.Tensor | None:
        """A hook of structures in which a token sees only some of those before it: whether the key is one of them
        (None: all are). A noised query has the position of its block's first token."""
        return None

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
            if (near := self.near(first[row, query], order[row, key])) is not None:
                before = before & near
            of_noised = noised_query & torch.where(noised_key, own, before)
            of_clean = ~noised_query & ~noised_key & self._before(order, order, row, query, key)
            return real[row, key] & (of_noised | of_clean)

        return sees

    def _before(
        self, of_query: torch.Tensor, of_key: torch.Tensor, row: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        """Whether the key's position is at most the query's, and near. of_query, of_key: positions."""
        query_position, key_position = of_query[row, query], of_key[row, key]
        near = self.near(query_position, key_position)
        at_most = key_position <= query_position
        return at_most if near is None else at_most & near

    def dense(self, real_BL: torch.Tensor, doubled: Doubled | None = None) -> torch.Tensor:
        """Which keys each query attends to, bool [B, L, L] (queries before keys), with `doubled` [B, N + L, N + L]."""
        rows, length = real_BL.shape[0], real_BL.shape[1] + (0 if doubled is None else doubled.noised)
        token = torch.arange(length, device=real_BL.device)
        row = torch.arange(rows, device=real_BL.device)[:, None, None]
        return self.sees(real_BL, doubled)(row, row, token[:, None], token).expand(rows, length, length)

    def flex(self, real_BL: torch.Tensor, doubled: Doubled | None) -> BlockMask:
        """The same for FlexAttention, which skips the tiles of 128 x 128 tokens in which nothing is attended to."""
        rows, length = real_BL.shape[0], real_BL.shape[1] + (0 if doubled is None else doubled.noised)
        return create_block_mask(self.sees(real_BL, doubled), rows, None, length, length, device=real_BL.device)

    def mask(self, real_BL: torch.Tensor, dtype: torch.dtype, doubled: Doubled | None = None) -> Any:
        """The mask as `bidirectional_attention` takes it, for products in `dtype`: [B, 1, 1, L] in full attention; else
        dense [B, 1, L, L] (with `doubled` N + L), or on a GPU in half precision a block mask."""
        if self == FULL:
            return mask_bias(real_BL[:, None, None], dtype)
        if real_BL.is_cuda and dtype in HALF:
            return self.flex(real_BL, doubled)
        return mask_bias(self.dense(real_BL, doubled)[:, None], dtype)


class PolicyForward(NamedTuple):
    """A policy's forward over views, with its backward pass or without. What its FLOPs depend on: the tokens of each
    view and its prompt, the number of targets, on the views' device, and which tokens attend to which."""

    policy: str
    length_S: torch.Tensor
    prompt_S: torch.Tensor
    targets: torch.Tensor
    structure: Structure
    backward: bool


FULL = Structure()
CAUSAL = Structure(causal=True)
