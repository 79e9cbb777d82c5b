"""The Triton kernel of the rectified loss, in its interpreter on a CPU, against the loss from logits in float64."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

from fused_cases import chunks_of, plain, random_case
from fused_cases import fused as rectified
from lfpo.contrib.canvases.cap import Cap
from lfpo.core import fused
from lfpo.core.head import Precision

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton: pip install triton")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a block of 16 logits."""
    from lfpo.core import kernel  # not at the top: Triton may be missing

    monkeypatch.setattr(kernel, "BLOCK", 16)
    return kernel


@pytest.fixture
def launched(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Makes the fused loss use the kernel. Lists its launches: tokens, branches, whether the logits came mixed."""
    found: list[tuple[int, int, bool]] = []

    def launch(
        z: torch.Tensor, z_old: Any, y: torch.Tensor, branches: list[Any], beta: float, dtype: torch.dtype
    ) -> Any:
        found.append((len(z), len(branches), z_old is None))
        return kernel.loss_and_gradient(z, z_old, y, branches, beta, dtype)

    monkeypatch.setattr(fused, "kernel_on", lambda device: launch)
    return found


def assert_close(found: Any, expected: Any, in_loss: float, in_gradient: float) -> None:
    """The loss, and the gradients by their norm."""
    for a, b, tolerance in zip(found, expected, (in_loss, in_gradient, in_gradient), strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("t", [1, 7])
@pytest.mark.parametrize("v", [5, 16, 37])  # below, at and above the block of 16, of which 37 is no multiple
@pytest.mark.parametrize("heads", ["own", "shared"])
@pytest.mark.parametrize("rewards", ["anywhere", "binary"])
@pytest.mark.parametrize("cap", [None, Cap(2.0)])
def test_loss_and_gradients_are_those_of_the_logits(
    launched: list[Any], cap: Cap | None, heads: str, rewards: str, v: int, t: int
):
    case = random_case(heads, rewards, t=t, v=v)
    knobs: dict[str, Any] = {"beta": 0.3, "positive_weight": 0.5, "negative_weight": 2.0, "logit_map": cap}
    with chunks_of(3 * v):
        found = rectified(case.to(torch.float32), **knobs)
    assert_close(found, plain(case, **knobs), 2e-6, 2e-6)
    one = rewards == "binary"
    assert launched == [
        (n, 1 if one else 2, one and heads == "shared" and cap is None) for n in ([1] if t == 1 else [3, 3, 1])
    ]


@pytest.mark.parametrize(("precision", "in_gradient"), [("float32", 1e-6), ("tf32", 2e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_gives_the_loops_results_in_every_precision(
    launched: list[Any], dtype: torch.dtype, precision: Precision, in_gradient: float
):
    case = random_case(t=3, v=60, d=16).to(dtype)
    found = rectified(case, beta=0.3, precision=precision)
    assert launched
    with mock.patch.object(fused, "kernel_on", return_value=None):
        expected = rectified(case, beta=0.3, precision=precision)
    # The gradient of bfloat16 products is rounded to bfloat16, by the interpreter towards zero.
    assert [x.dtype for x in found] == [torch.float32, dtype, dtype]
    assert_close(found, [x.double() for x in expected], 1e-6, in_gradient if dtype == torch.float32 else 1e-2)


def test_huge_logits_neither_overflow_nor_vanish(launched: list[Any]):
    """A good token of probability e^-1000 gets the full pull. A bad one of that probability gets no push, nor does
    one that theta_old prefers by e^500: pi- is near 1 there."""
    hidden = torch.tensor([[1000.0, 0.0], [1000.0, 0.0], [0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[0.0, 0.0], [0.0, 0.0], [500.0, 0.0]])
    y, r = torch.tensor([1, 1, 0]), torch.tensor([1.0, 0.0, 0.0])
    loss = fused.rectified_sum(hidden, old, torch.eye(2), torch.eye(2), y, r, beta=1.0)
    # pi- of the second token is softmax(-1000, 0) and that of the third softmax(1000, 0).
    assert loss == 1000
    assert torch.autograd.grad(loss, hidden)[0].tolist() == [[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which the interpreter uses
def test_what_is_not_finite_is_seen(launched: list[Any]):
    case = random_case(t=3, v=40).to(torch.float32)
    hidden = case.hidden.clone()
    hidden[1, 0] = torch.nan
    loss, in_hidden, in_head = rectified(replace(case, hidden=hidden), beta=0.3)
    assert loss.isnan() and in_head.isnan().all()
    assert in_hidden.isnan().any(-1).tolist() == [False, True, False]


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lfpo.core import kernel

pointers = dict.fromkeys(("z_ptr", "old_ptr", "gradient_ptr", "loss_ptr", "y_ptr", "sign_ptr", "share_ptr"), "*fp32")
for generation in (80, 90):
    for mixed, branches, gradient in ((True, 1, "*bf16"), (False, 2, "*fp32"), (False, 2, "*bf16")):
        values = {"VOCABULARY": 126464, "MIXED": mixed, "BRANCHES": branches, "BLOCK": kernel.BLOCK}
        signature = {**pointers, "gradient_ptr": gradient, "y_ptr": "*i64", "beta": "fp32"}
        signature |= dict.fromkeys(values, "constexpr")
        constants = {(list(signature).index(name),): value for name, value in values.items()}
        aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers))}
        options = {"num_warps": kernel.WARPS, "enable_fp_fusion": True}
        source = ASTSource(kernel._token, signature, constants, aligned)
        code = compile(source, target=GPUTarget("cuda", generation, 32), options=options).asm
        assert len(code["cubin"]) > 1000
        assert "ld.global.v4.b32" in code["ptx"]  # four logits at once
"""


@pytest.mark.long
def test_the_kernel_compiles_for_gpus_without_one(tmp_path: Any):
    """For an A100 and an H100 or H200, by the compiler that Triton brings."""
    settings = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILE], env=settings, check=True)
