"""Attention: the kernel that each case runs, what a new shape costs, and rows in blocks."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpu.rows import Machine, Row, at_most, measured, passes
from lfpo.base.measure import timed
from lfpo.core.attention import bidirectional_attention
from lfpo.core.structure import Doubled, Structure, mask_bias

MODULE = torch.nn.Identity()


@dataclass(frozen=True)
class Case:
    """heads: of queries, and of keys and values. window: queries of a window on a cache (0: all tokens are queries)."""

    label: str
    heads: tuple[int, int]
    masked: bool
    window: int = 0


CASES = (
    Case("no mask", (32, 32), False),
    Case("padding mask", (32, 32), True),
    Case("grouped heads, no mask", (28, 4), False),
    Case("grouped heads, padding mask", (28, 4), True),
    Case("window on a cache", (32, 32), True, window=32),
    Case("window on a cache, grouped heads", (28, 4), True, window=32),
)


def kernels(machine: Machine) -> list[Row]:
    """Never the math kernel, which holds all scores in memory; and no plan for each new shape."""
    rows = []
    shapes = [(16 + 3 * i, 600 + 17 * i) for i in range(8)] if machine.gpu else [(2, 40), (3, 37)]
    for case in CASES:
        _forward_and_backward(machine, case, *machine.size((12, 500), (2, 24)))  # loads the kernels
        seconds = []
        for rows_of_batch, length in shapes:
            first = _timed(machine, case, rows_of_batch, length)
            seconds.append(first - _timed(machine, case, rows_of_batch, length))
        found = _kernels_of(machine, case, *shapes[0])
        rows.append(passes(f"{case.label}: kernel", bool(found) and "math" not in found, found, "any but math"))
        # The time of a shape's first call above that of its second.
        extra = 1000 * sorted(seconds)[len(seconds) // 2]
        rows.append(
            at_most(f"{case.label}: new shape", extra, 5.0, "ms")
            if machine.gpu
            else measured(f"{case.label}: new shape", extra, "ms")
        )
    return rows


def _inputs(machine: Machine, case: Case, n: int, length: int) -> tuple[Any, ...]:
    dtype = machine.size(torch.bfloat16, torch.float32)
    width, (heads, kv_heads) = machine.size(128, 16), case.heads
    queries = min(case.window, length) or length
    shapes = [(n, heads, queries, width), (n, kv_heads, length, width), (n, kv_heads, length, width)]
    tensors = [torch.randn(shape, device=machine.device, dtype=dtype, requires_grad=True) for shape in shapes]
    mask = None
    if case.masked:
        lengths = length - torch.arange(n, device=machine.device) % (length // 4)
        real = torch.arange(length, device=machine.device) < lengths[:, None]
        mask = mask_bias(real[:, None, None], dtype)
    return (*tensors, mask)


def _forward_and_backward(machine: Machine, case: Case, n: int, length: int) -> None:
    inputs = _inputs(machine, case, n, length)
    bidirectional_attention(MODULE, *inputs)[0].sum().backward()


def _timed(machine: Machine, case: Case, n: int, length: int) -> float:
    inputs = _inputs(machine, case, n, length)
    return timed(lambda: bidirectional_attention(MODULE, *inputs)[0].sum().backward(), machine.device)[1]


def _kernels_of(machine: Machine, case: Case, n: int, length: int) -> str:
    """The names of the attention kernels of a forward and backward pass, as torch dispatched them."""
    prefix = "aten::_scaled_dot_product_"
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        _forward_and_backward(machine, case, n, length)
    names = {event.key.removeprefix(prefix) for event in trace.key_averages() if event.key.startswith(prefix)}
    return ", ".join(sorted(name for name in names if not name.endswith("backward")))


def blocks(machine: Machine) -> list[Row]:
    """[noised; clean] rows in blocks: FlexAttention, in the dtype of training, against the dense mask in float32.
    States, and on a GPU (FlexAttention has no backward pass on a CPU) the three gradients; and the time of both."""
    rows = []
    size, columns, width = machine.size((4, 1000, 128), (2, 10, 16))
    padding = torch.arange(size, device=machine.device) * columns // 5  # on the left
    row = torch.arange(columns, device=machine.device) >= padding[:, None]
    for causal in (False, True):
        structure = Structure(machine.size(32, 4), causal=causal, doubled=True)
        prompt = row.sum(-1) // 2
        start = int((padding + structure.first_noised(prompt)).min())
        doubled, real = Doubled(prompt, columns - start), torch.cat([row[:, start:], row], dim=1)
        masks = structure.flex(row, doubled), structure.mask(row, torch.float32, doubled)
        rows += _flex_rows(machine, "causal context" if causal else "blocks", masks, real, width)
    return rows


def _flex_rows(machine: Machine, name: str, masks: Any, real: torch.Tensor, width: int) -> list[Row]:
    rows, (size, length) = [], real.shape
    for heads, kv_heads in ((32, 32), (28, 4)):
        wide = [torch.randn(size, h, length, width, device=machine.device) for h in (heads, kv_heads, kv_heads)]
        narrow = [x.to(machine.size(torch.bfloat16, torch.float32)) for x in wide]
        runs = [functools.partial(_states, machine, x, m, real) for x, m in zip((narrow, wide), masks, strict=True)]
        error = max(float((a.float() - b).norm() / b.norm()) for a, b in zip(runs[0](), runs[1](), strict=True))
        case = f"{name}, {heads} heads on {kv_heads}"
        rows.append(at_most(f"{case}: relative error", error, machine.size(2e-2, 1e-5)))
        for kind, run in zip(("flex", "dense, float32"), runs, strict=True):
            rows.append(measured(f"{case}: {kind}", 1000 * timed(run, machine.device)[1], "ms"))
    return rows


def _states(machine: Machine, inputs: list[torch.Tensor], mask: Any, real: torch.Tensor) -> list[torch.Tensor]:
    """Attention's states of real tokens, and on a GPU the gradients of queries, keys and values."""
    leaves = [x.detach().requires_grad_(machine.gpu) for x in inputs]
    states = bidirectional_attention(MODULE, leaves[0], leaves[1], leaves[2], mask)[0][real]
    if not machine.gpu:
        return [states]
    (states * torch.linspace(-1, 1, states.shape[-1], device=machine.device)).square().sum().backward()
    return [states.detach(), *(x.grad for x in leaves if x.grad is not None)]
