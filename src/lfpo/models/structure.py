"""Which tokens of a row a token attends to: all, its own block and those before it, or both halves of [noised; clean].

A rule is a function of token numbers (`sees`). The dense mask and FlexAttention's block mask are made from that one
function.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from lfpo.models.attention import HALF, mask_bias

# (row, head, query, key) -> whether the query attends to the key; the arguments broadcast against each other.
Sees = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Structure:
    """How the tokens of a row attend to each other. Padding is never attended to.

    block_length: a token attends to its own block and to those before it, counted from each row's first real token
        (None: every token attends to all).
    doubled: a row is [noised; clean], two halves of equal length with the same padding, both at the same positions. A
        noised token attends to the noised tokens of its own block and to the clean ones of the blocks before it, a
        clean token to clean tokens only. So each noised block has the states that it has alone after a clean prefix.
    """

    block_length: int | None = None
    doubled: bool = False

    def positions(self, real_BL: torch.Tensor) -> torch.Tensor:
        """Position ids [B, L], counted from each row's first real token; in the doubled layout in each half."""
        if not self.doubled:
            return (real_BL.long().cumsum(-1) - 1).clamp(min=0)
        half = real_BL.shape[1] // 2
        return Structure().positions(real_BL[:, :half]).repeat(1, 2)

    def tokens(self, length_B: torch.Tensor) -> torch.Tensor:
        """Tokens of a forward over rows of these lengths, [B]; in the doubled layout a length is that of one half."""
        return length_B * (2 if self.doubled else 1)

    def pairs(self, length_B: torch.Tensor) -> torch.Tensor:
        """Pairs of a query and a key that it attends to in rows of these lengths (as in `tokens`), [B] float64."""
        n = length_B.double()
        if self.block_length is None:
            return n**2
        # A token of block b sees as many keys as there are in blocks 0 .. b, in each half.
        whole = length_B // self.block_length
        in_whole = self.block_length**2 * (whole * (whole + 1)).double() / 2
        return self.tokens(in_whole + n * (length_B % self.block_length))

    def sees(self, real_BL: torch.Tensor) -> Sees:
        """The rule as a function of the numbers of row, head, query and key. Queries at padding attend to some real
        token, so that no softmax is empty."""
        if self.block_length is None:
            return lambda row, head, query, key: real_BL[row, key]
        block_BL = self.positions(real_BL) // self.block_length
        if not self.doubled:
            return lambda row, head, query, key: real_BL[row, key] & (block_BL[row, key] <= block_BL[row, query])
        half = real_BL.shape[1] // 2

        def doubled(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            noised_query, noised_key = query < half, key < half
            own, before = block_BL[row, key] == block_BL[row, query], block_BL[row, key] < block_BL[row, query]
            same_half = noised_query == noised_key
            return real_BL[row, key] & (same_half & own | before & ~noised_key)

        return doubled

    def dense(self, real_BL: torch.Tensor) -> torch.Tensor:
        """Which keys each query attends to, bool [B, L, L] (queries before keys)."""
        rows, length = real_BL.shape
        token = torch.arange(length, device=real_BL.device)
        row = torch.arange(rows, device=real_BL.device)[:, None, None]
        return self.sees(real_BL)(row, row, token[:, None], token).expand(rows, length, length)

    def flex(self, real_BL: torch.Tensor) -> BlockMask:
        """The same for FlexAttention, which skips the tiles of 128 x 128 tokens in which nothing is attended to."""
        rows, length = real_BL.shape
        return create_block_mask(self.sees(real_BL), rows, None, length, length, device=real_BL.device)

    def mask(self, real_BL: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | BlockMask:
        """The mask as `bidirectional_attention` takes it, for products in `dtype`: [B, 1, 1, L] without blocks; with
        blocks [B, 1, L, L], or on a GPU in half precision a block mask."""
        if self.block_length is None:
            return mask_bias(real_BL[:, None, None], dtype)
        if real_BL.is_cuda and dtype in HALF:
            return self.flex(real_BL)
        return mask_bias(self.dense(real_BL)[:, None], dtype)


FULL = Structure()
