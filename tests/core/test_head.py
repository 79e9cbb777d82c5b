"""Products with the head in each precision: values, gradients, and what the key stands for."""

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from benchmarks.precision import BenchPrecisionConfig, error, random_problem, results, run_bench_precision
from cuda_stand_in import cuda_stand_in
from lfpo.config.sampler import SamplerConfig
from lfpo.core.head import CAST_ELEMENTS, Precision, add_product, as_input, precision_of, product
from lfpo.models import load_model, narrow_products
from lfpo.rollout.sampling import rollout


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_tf32_rounds_to_ten_bits_and_ties_to_even():
    one = 1.0
    ulp = 2.0**-10
    x = torch.tensor([one + ulp / 2, one + 1.5 * ulp, one + 0.51 * ulp, -one - 0.49 * ulp, 0.0, torch.inf])
    assert as_input(x, "tf32").tolist() == [one, one + 2 * ulp, one + ulp, -one, 0.0, torch.inf]


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_round_their_inputs_and_nothing_else(
    precision: Precision, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    a, b, total = random(4, 300, dtype=dtype), random(300, 6, seed=1, dtype=dtype), random(4, 6, seed=2)
    expected = as_input(a, precision).double() @ as_input(b, precision).double()
    found = product(a, b, precision)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    with cuda_stand_in():  # bfloat16 takes the kernel with float32 output there
        there = total.to("cuda")
        add_product(there, a.to("cuda"), b.to("cuda"), precision)
        rounded = there.cpu()
    tolerance = 1e-4 if precision != "tf32" else 0.5  # the matrix units of a GPU round; the stand-in does not
    torch.testing.assert_close(rounded.double(), total.double() + expected, rtol=1e-5, atol=tolerance)
    monkeypatch.setitem(CAST_ELEMENTS, "cpu", 6 * 70)  # in slices: five of rows, then six of columns
    for matrix in (b, b.T.contiguous().T):
        torch.testing.assert_close(product(a, matrix, precision), found, rtol=1e-5, atol=1e-4)


def test_float64_is_never_narrowed():
    a, b = random(3, 5, dtype=torch.float64), random(5, 2, seed=1, dtype=torch.float64)
    for precision in get_args(Precision):
        assert torch.equal(product(a, b, precision), a @ b)


def test_what_auto_stands_for():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    found = [precision_of("auto", d, t) for d in (cpu, gpu) for t in (torch.float64, torch.float32, torch.bfloat16)]
    assert found == ["float32", "float32", "float32", "float32", "tf32", "bfloat16"]
    assert precision_of("float32", gpu, torch.bfloat16) == "float32"


def test_tf32_is_a_setting_of_the_head_alone():
    """It is on inside the product, off where float32 is asked for, and afterwards as it was before."""
    flags: Any = torch.backends.cuda.matmul
    seen = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "") in ("matmul", "__matmul__"):
                seen.append(flags.fp32_precision)
            return function(*args, **(kwargs or {}))

    before = flags.fp32_precision
    with cuda_stand_in(), Watched():
        a, b = random(2, 3).to("cuda"), random(3, 2).to("cuda")
        for precision in ("tf32", "float32"):
            product(a, b, precision)
    assert seen == ["tf32", "ieee"]
    assert flags.fp32_precision == before


def test_the_key_decides_the_draws_too():
    """Lower precision changes confidences by about its rounding, and at most a few near ties among the tokens."""
    prompts, sampler = [[5, 6, 7], [8, 9]], SamplerConfig(gen_length=16, block_length=8)
    found = {}
    for precision in get_args(Precision):
        model = load_model("embedded")
        model.head_precision = precision
        found[precision] = rollout(model, prompts, sampler, [1, 2])
    exact = found["float32"]
    for precision, tolerance in (("tf32", 2e-3), ("bfloat16", 2e-2)):
        assert not torch.equal(found[precision].confidence, exact.confidence)
        first = exact.reveal_step == 0
        assert torch.equal(found[precision].tokens[first], exact.tokens[first])
        torch.testing.assert_close(
            found[precision].confidence[first], exact.confidence[first], rtol=tolerance, atol=tolerance
        )


def test_the_errors_are_those_of_the_rounding(tmp_path: Path):
    config = BenchPrecisionConfig(tokens=16, vocabulary=512, width=64, output=str(tmp_path))
    problem = random_problem(config, torch.device("cpu"))
    exact = results(problem, torch.float64, "float32")
    for precision in get_args(Precision):
        found = results(problem, torch.float32, precision)
        errors = {name: error(found[name], exact[name]) for name in exact}
        if precision == "float32":
            assert max(errors.values()) < 1e-6
            continue
        # Rounding to b bits changes a number by 2 ** -b / sqrt(12) of its power of two, and two inputs are rounded.
        unit = 2.0 ** -(10 if precision == "tf32" else 7) / 12**0.5
        assert all(0.5 * unit < errors[name] < 3 * unit for name in ("logits", "states", "head")), (precision, errors)
        assert errors["loss"] < unit
    assert run_bench_precision(config).exists()


def test_bfloat16_layers_without_fast_products(monkeypatch: pytest.MonkeyPatch):
    """Results and gradients are the float32 ones of the same numbers, rounded; a copy reads its own weights."""
    monkeypatch.setattr(narrow_products, "has_bfloat16", lambda: False)
    monkeypatch.setitem(CAST_ELEMENTS, "cpu", 64)  # several slices
    layers: Any = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 24, bias=False)).bfloat16()
    narrow_products.run_in_float32(layers)
    x, weight = random(2, 5, 24, dtype=torch.bfloat16).requires_grad_(), random(2, 5, 24, seed=1)
    found = layers(x)
    first, second = (layer.weight.float() for layer in layers)
    plain = x.detach().float().requires_grad_()
    between = (plain @ first.T).bfloat16() + layers[0].bias
    expected = between.float() @ second.T
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=0.01)
    mine, theirs = ((y.float() * weight).sum() for y in (found, expected))
    (gradient,), (wanted,) = torch.autograd.grad(mine, x), torch.autograd.grad(theirs, plain)
    torch.testing.assert_close(gradient.float(), wanted, rtol=2**-7, atol=0.02)
    copied = copy.deepcopy(layers)
    copied[1].weight.data.zero_()
    assert not copied(x).any() and torch.equal(layers(x), found)


def test_a_bfloat16_model_without_fast_products(monkeypatch: pytest.MonkeyPatch):
    ids = torch.arange(24).view(2, 12) + 5
    expected = load_model("embedded")(ids)
    monkeypatch.setattr(narrow_products, "has_bfloat16", lambda: False)
    found = load_model("embedded", dtype=torch.bfloat16)(ids)
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()
