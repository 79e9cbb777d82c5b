"""Time and error of the rectified loss at the size of an 8B model."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch

from gpu.rows import Machine, Row, at_least, at_most, measured, not_run, passes
from lfpo.base.measure import timed
from lfpo.contrib.canvases.cap import Cap
from lfpo.core import fused
from lfpo.core.fused import rectified_sum
from lfpo.core.head import Precision
from lfpo.core.rectified import rectified_loss

BETA = 0.3
# head_precision -> (milliseconds on an H200, relative error of the gradients).
BARS: dict[Precision, tuple[float, float]] = {"bfloat16": (35.0, 3e-2), "tf32": (80.0, 3e-3), "float32": (400.0, 1e-5)}


@dataclass(frozen=True)
class Inputs:
    """T tokens of two policies with heads of their own."""

    hidden: torch.Tensor
    hidden_old: torch.Tensor
    head: torch.Tensor
    head_old: torch.Tensor
    y: torch.Tensor
    r: torch.Tensor

    def first(self, n: int, dtype: torch.dtype) -> Inputs:
        """The first n tokens in another dtype."""
        hidden, hidden_old = self.hidden[:n].to(dtype), self.hidden_old[:n].to(dtype)
        return Inputs(
            hidden, hidden_old, self.head.to(dtype), self.head_old.to(dtype), self.y[:n], self.r[:n].to(dtype)
        )


Gradients = tuple[torch.Tensor, torch.Tensor]  # of the states and of the head


def rectified(machine: Machine) -> list[Row]:
    """Forward and backward of 4,096 tokens with an untied, trained head; errors against the logits form in float64."""
    rows = []
    for precision, (milliseconds, accuracy) in BARS.items():
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        inputs = _inputs(machine, dtype)
        fused = partial(_fused, inputs, precision)
        fused()
        taken = 1000 * min(timed(fused, machine.device)[1] for _ in range(3))
        label = f"{precision}: {len(inputs.y)} tokens"
        rows.append(at_most(label, taken, milliseconds, "ms") if machine.gpu else measured(label, taken, "ms"))
        few, exact = (inputs.first(128, x) for x in (dtype, torch.float64))
        pairs = zip(_fused(few, precision), _exact(exact), strict=True)
        for what, (found, expected) in zip(("states", "head"), pairs, strict=True):
            error = float((found.double() - expected).norm() / expected.norm())
            rows.append(at_most(f"{precision}: error of the gradient of the {what}", error, accuracy))
    return rows


# head_precision -> relative difference of the gradients. The kernel writes them in bfloat16 with bfloat16 products.
DIFFERENCES: dict[Precision, float] = {"float32": 1e-5, "bfloat16": 1e-2}


def kernel(machine: Machine) -> list[Row]:
    """The Triton kernel (on a CPU in Triton's interpreter) against the tensor operations that it replaces: results,
    time of the whole loss, and the kernel's share of the memory's rate."""
    if importlib.util.find_spec("triton") is None:
        return [not_run("the kernel", "Triton is not installed")]
    from lfpo.core.kernel import loss_and_gradient

    if machine.gpu and fused.kernel_on(machine.device) is None:
        return [passes("the kernel", False, "cannot run here", "runs")]
    rows = []
    for precision, difference in DIFFERENCES.items():
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        inputs = _inputs(machine, dtype).first(machine.size(4096, 8), dtype)
        found, capped, taken = [], [], []
        for launch in (loss_and_gradient, None):
            with mock.patch.object(fused, "kernel_on", return_value=launch):
                found.append(_fused(inputs, precision))
                if machine.gpu:
                    taken.append(min(timed(partial(_fused, inputs, precision), machine.device)[1] for _ in range(3)))
                capped.append(_fused(inputs, precision, logit_map=Cap(3.0)))
        for label, pair in (("", found), (" with a cap", capped)):
            for what, a, b in zip(("states", "head"), *pair, strict=True):
                error = float((a.double() - b.double()).norm() / b.double().norm())
                rows.append(at_most(f"{precision}: difference of the gradient of the {what}{label}", error, difference))
    what = "bfloat16: time of the loss over that without the kernel"
    rows.append(at_most(what, taken[0] / taken[1], 0.9) if taken else not_run(what, "interpreted"))
    what = "the kernel's memory rate over that of a copy"
    rows.append(at_least(what, _rate(machine, loss_and_gradient), 0.5) if machine.gpu else not_run(what, "interpreted"))
    return rows


def _rate(machine: Machine, launch: Any) -> float:
    """Logits of two policies are read twice and written once, 1,024 tokens of them."""
    z, z_old = (torch.randn(1024, 126464, device=machine.device) for _ in range(2))
    y, half = torch.zeros(1024, dtype=torch.long, device=machine.device), torch.full_like(z[:, 0], 0.5)
    work = partial(launch, z, z_old, y, [(2 * half, half), (-2 * half, half)], BETA, torch.float32)
    copy = min(timed(partial(z_old.copy_, z), machine.device)[1] for _ in range(5))
    return 5 / min(timed(work, machine.device)[1] for _ in range(5)) * copy / 2


def _inputs(machine: Machine, dtype: torch.dtype) -> Inputs:
    tokens, width, vocabulary = machine.size((4096, 4096, 126464), (64, 32, 999))
    rng = torch.Generator(machine.device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device=machine.device)

    hidden, head = random(tokens, width), random(vocabulary, width) / width**0.5
    hidden_old, head_old = hidden + 0.1 * random(tokens, width), head + 0.01 * random(vocabulary, width) / width**0.5
    y = torch.randint(vocabulary, (tokens,), generator=rng, device=machine.device)
    r = torch.rand(tokens, generator=rng, device=machine.device)
    return Inputs(hidden.to(dtype), hidden_old.to(dtype), head.to(dtype), head_old.to(dtype), y, r)


def _fused(inputs: Inputs, precision: Precision, logit_map: Cap | None = None) -> Gradients:
    hidden, head = (x.detach().requires_grad_() for x in (inputs.hidden, inputs.head))
    tensors = (hidden, inputs.hidden_old, head, inputs.head_old, inputs.y, inputs.r)
    loss = rectified_sum(*tensors, beta=BETA, precision=precision, logit_map=logit_map)
    return torch.autograd.grad(loss, (hidden, head))  # type: ignore[return-value]


def _exact(inputs: Inputs) -> Gradients:
    hidden, head = (x.detach().requires_grad_() for x in (inputs.hidden, inputs.head))
    z, z_old = hidden @ head.T, inputs.hidden_old @ inputs.head_old.T
    loss = rectified_loss(z, z_old, inputs.y, inputs.r, beta=BETA).sum()
    return torch.autograd.grad(loss, (hidden, head))  # type: ignore[return-value]
