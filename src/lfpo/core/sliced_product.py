"""Products with a large matrix in a dtype that is cast first: a slice at a time, not as a whole."""

from collections.abc import Callable

import torch

# Numbers of a matrix that are cast at once where products read it in another dtype, into memory that all slices share.
# A product with bfloat16 weights then takes a CPU at most twice as long as with a float32 copy of them.
CAST_ELEMENTS = {"cpu": 2**22, "cuda": 2**26}


def sliced_product(
    a: torch.Tensor,
    b: torch.Tensor,
    cast: Callable[[torch.Tensor], torch.Tensor],
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """a [M, K] @ b [K, N], float32 [M, N]. cast: gives a slice of b in the dtype of a. multiply: a product of both."""
    by_column = b.stride(0) < b.stride(1)  # as in a transposed matrix: slices give columns of the result, else summands
    width = b.shape[0] if by_column else b.shape[1]
    size = max(1, CAST_ELEMENTS.get(b.device.type, CAST_ELEMENTS["cpu"]) // max(1, width))
    memory = a.new_empty(size, width)
    out = a.new_zeros(len(a), b.shape[1], dtype=torch.float32)
    slices = (b.T if by_column else b).split(size)
    for columns, part in zip((out if by_column else a).split(size, dim=1), slices, strict=True):
        # bfloat16 numbers are exact in every precision.
        held = memory[: len(part)].copy_(part if part.dtype == torch.bfloat16 else cast(part))
        if by_column:
            columns.copy_(multiply(a, held.T))
        else:
            out += multiply(columns, held)
    return out
