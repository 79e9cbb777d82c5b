"""Losses straight from hidden states: the logits of all positions never exist together. First LFPO's own."""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lfpo.core.head import LogitMap, Precision, add_product, as_input, input_dtype, product

# Logits held at once, in elements, by device type: 64 MiB a tensor in float32 on a CPU, 512 MiB on a GPU, where small
# products leave the device idle.
CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**27}
ROWS = 1024  # large chunks are cut to a multiple: the kernels of matrix products compute in tiles of up to 256 rows


def rows_of_a_chunk(device: torch.device, vocab_size: int) -> int:
    """Tokens whose logits are held at once."""
    rows = max(1, CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS["cpu"]) // vocab_size)
    return rows if rows < ROWS else rows - rows % ROWS


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


def logp_of_labels(
    head: Callable[[torch.Tensor], torch.Tensor], temperature: float, hidden: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Log-probabilities [t] of the labels [t], for `in_chunks`. head: gives the logits [t, V] of states."""
    return -F.cross_entropy(head(hidden) / temperature, labels, reduction="none")


# From logits to losses [T] and their gradient [T, V]: lfpo.core.kernel.loss_and_gradient.
Kernel = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@functools.cache
def kernel_on(device: torch.device) -> Kernel | None:
    """The Triton kernel for a chunk's logits; None except on a GPU with Triton installed. Warns if it cannot run."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from lfpo.core.kernel import loss_and_gradient, runs_on

    return loss_and_gradient if runs_on(device) else None


def rectified_sum(
    hidden_TD: torch.Tensor,
    hidden_old_TD: torch.Tensor,
    head_VD: torch.Tensor,
    head_old_VD: torch.Tensor,
    y_T: torch.Tensor,
    r_T: torch.Tensor,
    token_weight_T: torch.Tensor | None = None,
    *,
    beta: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    precision: Precision = "float32",
    logit_map: LogitMap | None = None,
) -> torch.Tensor:
    """The rectified cross-entropy summed over tokens (LFPO, Eq. 8 to 10), a scalar:

        sum over T of  -w [w+ r log pi+(y) + w- (1 - r) log pi-(y)] / beta
        pi+ = softmax((1 - beta) z_old + beta z),  pi- = softmax((1 + beta) z_old - beta z)
        z = hidden @ head.T,  z_old = hidden_old @ head_old.T,  or what logit_map makes of them

    hidden_TD, head_VD: of the current policy; gradients flow into them where they are asked for. hidden_old_TD,
        head_old_VD: of theta_old, constants. y_T: tokens, int64. r_T in [0, 1]. token_weight_T: w, 1 where not given.
    beta > 0; positive_weight and negative_weight: w+ and w-. logit_map: the model's.

    Loss and gradient are computed together, a chunk of tokens at a time: two products with a head for the logits, one
    for the gradient of the states, one more for that of a trained head. Where both policies share one head, r is 0 or 1
    everywhere and there is no logit_map, one product gives all logits: mixed logits are those of mixed states.
    precision: of these products (lfpo.core.head); their sums and everything else are float32 (float64 for float64
    states).

    On a GPU with Triton the step from a chunk's float32 logits to their gradient is one kernel (kernel.py), which
    reads the logits twice; elsewhere it is a dozen tensor operations. Both give the same to float32 rounding.
    """
    wide = torch.promote_types(hidden_TD.dtype, torch.float32)
    weight_T = torch.ones_like(r_T, dtype=wide) if token_weight_T is None else token_weight_T.to(wide)
    branches = _branches(r_T.to(wide), positive_weight, negative_weight)
    other = None if _same_memory(head_VD, head_old_VD) else head_old_VD

    def chunk(piece: slice) -> tuple[torch.Tensor, torch.Tensor]:
        weighted = [(sign[piece], share[piece]) for sign, share in branches]
        states = (hidden_TD[piece], hidden_old_TD[piece])
        return _chunk(*states, head_VD, other, y_T[piece], weighted, beta, weight_T[piece], precision, logit_map)

    return FusedSum.apply(hidden_TD, head_VD, chunk, precision)


Branches = list[tuple[torch.Tensor, torch.Tensor]]  # see _branches
# Tokens of the chunk -> loss, and its gradient in the logits [t, V]. Called without gradients.
Chunk = Callable[[slice], tuple[torch.Tensor, torch.Tensor]]


class FusedSum(torch.autograd.Function):
    """A sum over tokens whose loss and gradient in the logits `chunk` gives for some tokens at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, chunk: Chunk, precision: Precision) -> torch.Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head, dtype=wide) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=wide, device=hidden.device)
        size = rows_of_a_chunk(hidden.device, len(head))
        for start in range(0, len(hidden), size):
            piece = slice(start, start + size)
            loss, dz = chunk(piece)
            total += loss
            dz = as_input(dz, precision)
            if grad_hidden is not None:
                grad_hidden[piece] = product(dz, head, precision)
            if grad_head is not None:
                add_product(grad_head, dz.T, hidden[piece], precision)
            del dz  # frees it before the next chunk's logits are made
        ctx.save_for_backward(grad_hidden, None if grad_head is None else grad_head.to(head.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # In place: the head's gradient is as large as the head. A second backward pass of one graph raises.
        grad_hidden, grad_head = (None if g is None else g.mul_(grad) for g in ctx.saved_tensors)
        return grad_hidden, grad_head, None, None


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are views of the same memory with the same layout."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype


def _branches(r_T: torch.Tensor, positive_weight: float, negative_weight: float) -> Branches:
    """(sign, share) of each implicit policy, both [T]: sign +1 for pi+ with share w+ r, -1 for pi- with w- (1 - r).

    Where r is 0 or 1 for every token, only one policy of each token counts, and one branch holds all of them.
    """
    one_T = torch.ones_like(r_T)
    if bool(((r_T == 0) | (r_T == 1)).all()):
        return [(2 * r_T - 1, positive_weight * r_T + negative_weight * (1 - r_T))]
    return [(one_T, positive_weight * r_T), (-one_T, negative_weight * (1 - r_T))]


def _chunk(
    hidden: torch.Tensor,
    hidden_old: torch.Tensor,
    head: torch.Tensor,
    head_old: torch.Tensor | None,
    y: torch.Tensor,
    branches: Branches,
    beta: float,
    weight: torch.Tensor,
    precision: Precision,
    logit_map: LogitMap | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of t tokens and its gradient in their products with the head, [t, V]. head_old: None when it is `head`;
    logit_map: see `rectified_sum`."""
    wide = weight.dtype
    kernel = kernel_on(hidden.device) if wide == torch.float32 else None
    z = z_old = None
    # Two heads, a map of logits, or a kernel that mixes two branches: logits of each policy. Otherwise `mixed` makes a
    # branch's logits from mixed hidden states, in one product.
    if head_old is not None or logit_map is not None or (kernel is not None and len(branches) > 1):
        z = product(hidden, head.T, precision)
        one = head_old is None and _same_memory(hidden, hidden_old)  # a policy beside itself, as in supervised training
        z_old = z if one else product(hidden_old, (head if head_old is None else head_old).T, precision)
        if logit_map is not None:
            z = logit_map.in_place(z)
            z_old = z if one else logit_map.in_place(z_old)

    def mixed(sign: torch.Tensor) -> torch.Tensor:
        mix = (sign * beta)[:, None]
        if z is None or z_old is None:
            return product(torch.lerp(hidden_old.to(wide), hidden.to(wide), mix), head.T, precision)
        return torch.lerp(z_old, z, mix)  # z_old + mix (z - z_old): the logits of pi+ or pi-

    if kernel is not None:
        weighted = [(sign, weight * share) for sign, share in branches]
        logits = mixed(branches[0][0]) if z is None else z
        mapped = None if logit_map is None else logits.clone()  # the kernel may put the gradient in their place
        losses, dz = kernel(logits, z_old, y, weighted, beta, dtype=input_dtype(weight.dtype, precision))
        return losses.sum(), dz if logit_map is None or mapped is None else logit_map.pull_back(dz, mapped)
    loss, gradient = torch.zeros((), dtype=wide, device=hidden.device), None
    for sign, share in branches:
        a = mixed(sign)
        # In place from here: logits become probabilities, and those the gradient share sign (pi - e_y).
        peak = a.amax(-1, keepdim=True)
        chosen = a.gather(1, y[:, None]) - peak
        total = a.sub_(peak).exp_().sum(-1, keepdim=True)
        loss += (weight * share * (total.log() - chosen).squeeze(1)).sum() / beta
        scale = weight * share * sign
        a.mul_(scale[:, None] / total)
        a.scatter_add_(1, y[:, None], -scale[:, None])
        gradient = a if gradient is None else gradient.add_(a)
    assert gradient is not None
    if logit_map is not None and z is not None:
        gradient = logit_map.pull_back(gradient, z)
    return loss, gradient
