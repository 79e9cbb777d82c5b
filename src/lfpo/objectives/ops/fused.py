"""The rectified cross-entropy and its gradient straight from hidden states: no tensor of all logits ever exists."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

# Logits held at once, in elements, by device type: 64 MiB a tensor in float32 on a CPU, 512 MiB on a GPU, where a small
# product would leave it idle.
CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**27}


def rectified_sum(
    hidden_TD: torch.Tensor,
    hidden_ref_TD: torch.Tensor,
    weight_VD: torch.Tensor,
    weight_ref_VD: torch.Tensor,
    y_T: torch.Tensor,
    r_T: torch.Tensor,
    *,
    beta: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    token_weight_T: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum over tokens of `ops.rectified.rectified_loss`, each times its token_weight, as a scalar.

    hidden_TD, hidden_ref_TD: states that the heads weight_VD and weight_ref_VD turn into logits of the current and the
    reference policy. Gradients flow into hidden_TD and weight_VD where they ask for it, never into the reference's.

    Both are computed in the forward pass, a chunk of tokens at a time: two products with a head for the logits, one
    for the states' gradient, one more for a trained head. Where both policies share one head and r is 0 or 1
    everywhere, one product gives all the logits that are needed, since mixed logits are the logits of mixed states.
    Products run in the states' dtype, everything else in float32 (float64 for float64 states).
    """
    weights = torch.ones_like(r_T) if token_weight_T is None else token_weight_T
    return _RectifiedSum.apply(
        hidden_TD,
        hidden_ref_TD.detach(),
        weight_VD,
        weight_ref_VD.detach(),
        y_T,
        r_T,
        weights,
        (beta, positive_weight, negative_weight),
    )


def cross_entropy_sum(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, y_T: torch.Tensor, token_weight_T: torch.Tensor
) -> torch.Tensor:
    """Sum over tokens of token_weight times the cross-entropy: the rectified loss of r = 1, beta = 1."""
    r_T = torch.ones_like(token_weight_T)
    return rectified_sum(hidden_TD, hidden_TD, weight_VD, weight_VD, y_T, r_T, beta=1.0, token_weight_T=token_weight_T)


class _RectifiedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        hidden_ref: torch.Tensor,
        weight: torch.Tensor,
        weight_ref: torch.Tensor,
        y: torch.Tensor,
        r: torch.Tensor,
        token_weight: torch.Tensor,
        knobs: tuple[float, float, float],
    ) -> torch.Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        shared = _same(weight, weight_ref)
        branches = _branches(r.to(wide), *knobs)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[2] else None
        total = torch.zeros((), dtype=wide, device=hidden.device)
        size = max(1, CHUNK_ELEMENTS.get(hidden.device.type, CHUNK_ELEMENTS["cpu"]) // len(weight))
        for start in range(0, len(hidden), size):
            piece = slice(start, start + size)
            loss, dz = _chunk(
                hidden[piece],
                hidden_ref[piece],
                weight,
                None if shared else weight_ref,
                y[piece],
                [(sign[piece], share[piece]) for sign, share in branches],
                knobs[0],
                token_weight[piece].to(wide),
            )
            total += loss
            narrow = dz.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(narrow, weight, out=grad_hidden[piece])
            if grad_weight is not None:
                grad_weight.addmm_(narrow.T, hidden[piece]) if narrow.dtype == wide else grad_weight.add_(
                    narrow.T @ hidden[piece]
                )
            del dz, narrow  # or they stay while the next chunk's logits are made
        ctx.save_for_backward(grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scaled = [None if g is None else g * grad.to(g.dtype) for g in (grad_hidden, grad_weight)]
        return scaled[0], None, scaled[1], None, None, None, None, None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same memory, read in the same way."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype


def _branches(
    r: torch.Tensor, beta: float, positive: float, negative: float
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(sign, weight) of the policies whose cross-entropies each token's loss is made of, both [T]: pi+ and pi-, or the
    one of them that counts where r is 0 or 1 for every token."""
    one = torch.ones_like(r)
    if bool(((r == 0) | (r == 1)).all()):
        return [(2 * r - 1, positive * r + negative * (1 - r))]
    return [(one, positive * r), (-one, negative * (1 - r))]


def _chunk(
    hidden: torch.Tensor,
    hidden_ref: torch.Tensor,
    weight: torch.Tensor,
    weight_ref: torch.Tensor | None,
    y: torch.Tensor,
    branches: list[tuple[torch.Tensor, torch.Tensor]],
    beta: float,
    token_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of some tokens and its gradient in their current logits, [t, V]. weight_ref: None when it is `weight`."""
    wide = token_weight.dtype
    z = z_ref = None
    if weight_ref is not None:
        z, z_ref = (hidden @ weight.T).to(wide), (hidden_ref @ weight_ref.T).to(wide)
    loss, dz = torch.zeros((), dtype=wide, device=hidden.device), None
    for sign, share in branches:
        mix = (sign * beta)[:, None]
        if z is None or z_ref is None:
            a = (torch.lerp(hidden_ref.to(wide), hidden.to(wide), mix).to(hidden.dtype) @ weight.T).to(wide)
        else:
            a = torch.lerp(z_ref, z, mix)
        # In place from here: logits become probabilities and those the gradient.
        peak = a.amax(-1, keepdim=True)
        chosen = a.gather(1, y[:, None]) - peak
        total = a.sub_(peak).exp_().sum(-1, keepdim=True)
        loss += (token_weight * share * (total.log() - chosen).squeeze(1)).sum() / beta
        scale = token_weight * share * sign
        a.mul_(scale[:, None] / total)
        a.scatter_add_(1, y[:, None], -scale[:, None])
        dz = a if dz is None else dz.add_(a)
    assert dz is not None
    return loss, dz
