"""Any function of logits, a bounded number of positions at a time, in the backward pass too."""

from collections.abc import Callable, Sequence

import torch
from torch.utils.checkpoint import checkpoint

from lfpo.objectives.ops.fused import rows_of_a_chunk


def in_chunks(function: Callable[..., torch.Tensor], rows: Sequence[torch.Tensor], vocab_size: int) -> torch.Tensor:
    """torch.cat of function(*pieces) over pieces of the tensors `rows`, which share their first dimension T.

    What `function` makes on its way (logits, [t, V]) is not kept for the backward pass but made again there: one more
    product with the head, against memory that grows with T x V.
    """
    size = rows_of_a_chunk(rows[0].device, vocab_size)
    pieces = zip(*(x.split(size) for x in rows), strict=True)
    if len(rows[0]) <= size:
        return function(*rows)
    return torch.cat([checkpoint(function, *piece, use_reentrant=False) for piece in pieces])
