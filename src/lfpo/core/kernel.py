"""The rectified loss and its gradient from the logits of a chunk, on a GPU: a Triton kernel that reads them twice.

Imported only where Triton is installed (`lfpo.core.fused.kernel_on`).
"""

import subprocess
import warnings
from typing import Any

import torch
import triton
import triton.language as tl

# Raised at the first launch where there is no C compiler, or where the GPU is too old.
CANNOT_COMPILE = (triton.TritonError, RuntimeError, OSError, subprocess.SubprocessError)
BLOCK = 4096  # logits of a token in registers at a time
WARPS = 8


def loss_and_gradient(
    z_TV: torch.Tensor,
    z_old_TV: torch.Tensor | None,
    y_T: torch.Tensor,
    branches: list[tuple[torch.Tensor, torch.Tensor]],
    beta: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [T], float32, and their gradient in z, [T, V] of `dtype`:

        loss = sum over branches of share (log sum exp a - a[y]) / beta,  a = z_old + sign beta (z - z_old)
        gradient = sum over branches of sign share (softmax a - e_y)

    z_TV, z_old_TV: float32, contiguous. z_old_TV None: z_TV holds the mixed logits `a` of the one branch.
    branches: one or two of (sign, share), each [T] float32. dtype: float32 overwrites z_TV; another makes a new tensor.
    All arithmetic is float32.
    """
    gradient_TV = z_TV if dtype == z_TV.dtype else torch.empty_like(z_TV, dtype=dtype)
    sign_TK, share_TK = (torch.stack(x, dim=1) for x in zip(*branches, strict=True))
    loss_T = torch.empty_like(z_TV[:, 0])
    launch: Any = _token[(len(z_TV),)]
    with torch.cuda.device_of(z_TV):
        launch(
            z_TV,
            z_TV if z_old_TV is None else z_old_TV,
            gradient_TV,
            loss_T,
            y_T.contiguous(),
            sign_TK,
            share_TK,
            float(beta),
            VOCABULARY=z_TV.shape[1],
            MIXED=z_old_TV is None,
            BRANCHES=len(branches),
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=True,
        )
    return loss_T, gradient_TV


def runs_on(device: torch.device) -> bool:
    """Whether the kernel can run on a GPU. Warns if it cannot."""
    one, first = torch.ones(1, device=device), torch.zeros(1, device=device, dtype=torch.long)
    try:
        loss_and_gradient(one[None].clone(), None, first, [(one, one)], 1.0, torch.float32)
    except CANNOT_COMPILE as error:
        warnings.warn(f"the loss runs without its Triton kernel, which is slower: {error}", stacklevel=2)
        return False
    return True


@triton.jit
def _token(  # type: ignore[no-untyped-def]
    z_ptr,
    old_ptr,
    gradient_ptr,
    loss_ptr,
    y_ptr,
    sign_ptr,
    share_ptr,
    beta,
    VOCABULARY: tl.constexpr,
    MIXED: tl.constexpr,
    BRANCHES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token: maximum and sum of exponentials of each branch in one pass, the gradient in a second."""
    token = tl.program_id(0).to(tl.int64)
    z_ptr += token * VOCABULARY
    old_ptr += token * VOCABULARY
    gradient_ptr += token * VOCABULARY
    y = tl.load(y_ptr + token)
    sign_ptr += token * BRANCHES
    share_ptr += token * BRANCHES
    sign, share = tl.load(sign_ptr), tl.load(share_ptr)
    mix, peak, total = beta * sign, -float("inf"), 0.0
    chosen = _mixed(z_ptr, old_ptr, y, True, mix, MIXED)  # before the second pass overwrites it
    if BRANCHES == 2:
        sign_2, share_2 = tl.load(sign_ptr + 1), tl.load(share_ptr + 1)
        mix_2, peak_2, total_2 = beta * sign_2, -float("inf"), 0.0
        chosen_2 = _mixed(z_ptr, old_ptr, y, True, mix_2, MIXED)

    for start in range(0, VOCABULARY, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < VOCABULARY
        a = _mixed(z_ptr, old_ptr, column, inside, mix, MIXED)
        higher = tl.maximum(peak, tl.max(a, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(a - higher), 0)
        peak = higher
        if BRANCHES == 2:
            a_2 = _mixed(z_ptr, old_ptr, column, inside, mix_2, MIXED)
            higher_2 = tl.maximum(peak_2, tl.max(a_2, 0))
            total_2 = total_2 * tl.exp(peak_2 - higher_2) + tl.sum(tl.exp(a_2 - higher_2), 0)
            peak_2 = higher_2

    loss = share * (tl.log(total) + peak - chosen)
    pull = sign * share
    if BRANCHES == 2:
        loss += share_2 * (tl.log(total_2) + peak_2 - chosen_2)
        pull_2 = sign_2 * share_2
    tl.store(loss_ptr + token, loss / beta)

    for start in range(0, VOCABULARY, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < VOCABULARY
        a = _mixed(z_ptr, old_ptr, column, inside, mix, MIXED)
        gradient = pull / total * tl.exp(a - peak) - tl.where(column == y, pull, 0.0)
        if BRANCHES == 2:
            a_2 = _mixed(z_ptr, old_ptr, column, inside, mix_2, MIXED)
            gradient += pull_2 / total_2 * tl.exp(a_2 - peak_2) - tl.where(column == y, pull_2, 0.0)
        tl.store(gradient_ptr + column, gradient.to(gradient_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _mixed(z_ptr, old_ptr, column, inside, mix, MIXED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of a branch; -inf outside."""
    z = tl.load(z_ptr + column, mask=inside, other=0.0)
    if not MIXED:
        old = tl.load(old_ptr + column, mask=inside, other=0.0)
        z = old + mix * (z - old)
    return tl.where(inside, z, -float("inf"))
