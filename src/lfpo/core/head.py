"""Products with the head: logits from hidden states, and their gradients, in a stated precision."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch.autograd.function import once_differentiable

Precision = Literal["float32", "tf32", "bfloat16"]
# Numbers of a matrix that are cast at once where products read it in another dtype, into memory that all slices share.
# A product with bfloat16 weights then takes a CPU at most twice as long as with a float32 copy of them.
CAST_ELEMENTS = {"cpu": 2**22, "cuda": 2**26}


class LogitMap(Protocol):
    """What a family makes of the products with its head, element by element, before they are logits."""

    def __call__(self, products: torch.Tensor) -> torch.Tensor:
        """The logits, differentiable."""
        ...

    def in_place(self, products: torch.Tensor) -> torch.Tensor:
        """The logits, in the memory of the products; not differentiable."""
        ...

    def pull_back(self, gradient: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The gradient in the products, of that in the logits. Overwrites both."""
        ...


def precision_of(setting: str, device: torch.device, dtype: torch.dtype) -> Precision:
    """What `head_precision` stands for on a device, for a head of this dtype.

    "float32": inputs are read in float32, without TF32. "tf32": they are rounded to 10 bits of mantissa, by the GPU's
    matrix units; on a CPU by this module, which is slow and for measuring the error. "bfloat16": to 7 bits. Logits are
    float32 in each case; float64 inputs stay float64. "auto": float32 on a CPU; on a GPU TF32 for a float32 head,
    bfloat16 for one stored in half precision.
    """
    if setting in ("float32", "tf32", "bfloat16"):
        return setting  # type: ignore[return-value]
    if device.type != "cuda" or dtype == torch.float64:
        return "float32"
    return "tf32" if dtype == torch.float32 else "bfloat16"


def as_input(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    """`x` as products of this precision read it; on a CPU rounded to TF32's 10 bits of mantissa, ties to even."""
    x = x.to(input_dtype(x.dtype, precision))
    if precision != "tf32" or x.dtype != torch.float32 or x.is_cuda:
        return x
    bits = x.view(torch.int32)
    return (bits + 0xFFF + ((bits >> 13) & 1) & ~0x1FFF).view(torch.float32)


def input_dtype(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """The dtype of `as_input` of a tensor of this dtype."""
    if dtype == torch.float64:
        return dtype
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def product(a: torch.Tensor, b: torch.Tensor, precision: Precision) -> torch.Tensor:
    """a [M, K] @ b [K, N] with sums and result in float32 (float64 for float64 inputs); not differentiable.

    A large b that has to be cast is cast in slices, not as a whole.
    """
    a = _wide(as_input(a, precision))
    large = b.numel() > CAST_ELEMENTS.get(b.device.type, CAST_ELEMENTS["cpu"])
    if large and not b.dtype == a.dtype == input_dtype(b.dtype, precision):
        cast, multiply = partial(as_input, precision=precision), partial(_product, precision=precision)
        return sliced_product(a, b, cast, multiply)
    return _product(a, _wide(as_input(b, precision)), precision)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """On a CPU, which has no product of bfloat16 numbers with sums in float32, the same numbers in float32: products of
    bfloat16 numbers are exact there."""
    return x.float() if x.dtype == torch.bfloat16 and not x.is_cuda else x


def _product(a: torch.Tensor, b: torch.Tensor, precision: Precision) -> torch.Tensor:
    """`product` of inputs that are cast already."""
    if a.dtype == torch.bfloat16:
        return torch.mm(a, b, out_dtype=torch.float32)
    with _tf32(a.is_cuda, precision == "tf32"):
        return a @ b


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


def add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, precision: Precision) -> None:
    """total += product(a, b, precision), in place. total: of the product's dtype."""
    a, b = as_input(a, precision), as_input(b, precision)
    if a.dtype == torch.bfloat16:
        total += product(a, b, precision)
        return
    with _tf32(a.is_cuda, precision == "tf32"):
        total.addmm_(a, b)


@contextlib.contextmanager
def _tf32(on_gpu: bool, enabled: bool) -> Iterator[None]:
    """TF32 in products of float32 on a GPU, or none of it, inside the block."""
    if not on_gpu:
        yield
        return
    flags: Any = torch.backends.cuda.matmul
    before, flags.fp32_precision = flags.fp32_precision, "tf32" if enabled else "ieee"
    try:
        yield
    finally:
        flags.fp32_precision = before


def logits(hidden: torch.Tensor, head_VD: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Logits [..., V] of hidden states [..., D], as `product`. Differentiable in both, in the same precision."""
    flat: torch.Tensor = _Logits.apply(hidden.reshape(-1, hidden.shape[-1]), head_VD, precision)
    return flat.view(*hidden.shape[:-1], len(head_VD))


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, precision: Precision) -> torch.Tensor:
        ctx.save_for_backward(hidden, head)
        ctx.precision = precision
        return product(hidden, head.T, precision)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, head = ctx.saved_tensors
        grad_hidden = product(grad, head, ctx.precision).to(hidden.dtype) if ctx.needs_input_grad[0] else None
        grad_head = product(grad.T, hidden, ctx.precision).to(head.dtype) if ctx.needs_input_grad[1] else None
        return grad_hidden, grad_head, None
