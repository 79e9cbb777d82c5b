"""The kernels of attention, against attention by hand."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from cuda_stand_in import cuda_stand_in
from lfpo.core import attention_kernels
from lfpo.core.attention import SHORT, bidirectional_attention
from lfpo.core.structure import mask_bias

# What each case of attention runs on: dtype, heads of keys, masked -> kernel on a GPU.
KERNELS = [
    (torch.bfloat16, 4, False, SDPBackend.FLASH_ATTENTION),
    (torch.bfloat16, 2, False, SDPBackend.FLASH_ATTENTION),
    (torch.bfloat16, 4, True, SDPBackend.EFFICIENT_ATTENTION),
    (torch.bfloat16, 2, True, SDPBackend.EFFICIENT_ATTENTION),
    (torch.float32, 4, False, SDPBackend.EFFICIENT_ATTENTION),
    (torch.float32, 2, True, SDPBackend.EFFICIENT_ATTENTION),
    (torch.float64, 2, True, SDPBackend.MATH),  # no fused kernel computes in float64
]


def attention_case(dtype: torch.dtype, kv_heads: int, masked: bool, window: int, device: str) -> list[Any]:
    """query [2, 4, window, 8], keys and values [2, kv_heads, 11, 8], and a mask that hides three columns of row 0."""
    rng = torch.Generator().manual_seed(0)
    shapes = ((4, window), (kv_heads, 11), (kv_heads, 11))
    made: list[Any] = [torch.randn(2, h, n, 8, generator=rng).to(device, dtype) for h, n in shapes]
    real = torch.ones(2, 11, dtype=torch.bool)
    real[0, :3] = False
    return [*made, mask_bias(real.to(device)[:, None, None], dtype) if masked else None]


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention in float64, keys repeated, [B, W, H, D]."""
    query, key, value = (x.cpu().double() for x in (query, key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * 0.3
    if mask is not None:
        scores[0, :, :, :3] = -torch.inf
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize(("dtype", "kv_heads", "masked", "kernel"), KERNELS, ids=str)
@pytest.mark.parametrize("window", [11, 4])
def test_each_case_asks_for_its_kernel(dtype: torch.dtype, kv_heads: int, masked: bool, kernel: Any, window: int):
    with cuda_stand_in() as gpu:
        query, key, value, mask = attention_case(dtype, kv_heads, masked, window, "cuda")
        assert mask is None or all(stride % attention_kernels.ALIGNED == 0 for stride in mask.stride()[:-1])
        found = bidirectional_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)[0].cpu()
    assert gpu.backends == [kernel]
    expected = by_hand(*attention_case(dtype, kv_heads, masked, window, "cpu"))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [11, 4])
def test_grouped_queries_may_each_see_other_keys(window: int):
    """A window over a causal context: row 0's queries attend to none of the later ones."""
    query, key, value, _ = attention_case(torch.float32, 2, False, window, "cpu")
    seen = torch.ones(2, 1, window, 11, dtype=torch.bool)
    seen[0] = torch.arange(11) <= torch.arange(11 - window, 11)[:, None]
    expected = bidirectional_attention(torch.nn.Identity(), query, key, value, seen, scaling=0.3)[0]
    with cuda_stand_in() as gpu:
        query, key, value = query.to("cuda"), key.to("cuda"), value.to("cuda")
        mask = mask_bias(seen.to("cuda"), torch.float32)
        found = bidirectional_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)[0].cpu()
    assert gpu.backends == [SDPBackend.EFFICIENT_ATTENTION]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_cpu_runs_one_fused_kernel():
    for dtype, kv_heads, masked, _ in KERNELS:
        query, key, value, mask = attention_case(dtype, kv_heads, masked, 4, "cpu")
        with torch.profiler.profile() as profile:
            bidirectional_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {event.key for event in profile.key_averages()}


def test_autocast_decides_the_kernel_of_float32_values():
    """As over a 4-bit base, whose layers return their input's dtype."""
    with cuda_stand_in() as gpu:
        query, key, value, _ = attention_case(torch.float32, 4, False, 11, "cuda")
        with torch.autocast("cuda", torch.bfloat16):
            found, _ = bidirectional_attention(torch.nn.Identity(), query, key, value, None)
    assert found.dtype == torch.bfloat16
    assert gpu.backends == [SDPBackend.FLASH_ATTENTION]


def test_short_rows_on_a_cpu_attend_in_float32_under_autocast():
    """The backward pass of a CPU in bfloat16 is the slow one. Results keep autocast's dtype and are those of float32,
    with gradients and without; those of long rows are autocast's."""
    torch.manual_seed(0)
    short = [torch.randn(2, heads, 5, 8, dtype=torch.bfloat16).requires_grad_() for heads in (4, 2, 2)]
    long = [x.detach().repeat(1, 1, SHORT, 1) for x in short]

    def attended(values: list[torch.Tensor]) -> torch.Tensor:
        return bidirectional_attention(torch.nn.Identity(), values[0], values[1], values[2], None)[0]

    wide, wide_long = (attended([x.float() for x in values]) for values in (short, long))
    with torch.autocast("cpu", torch.bfloat16):
        trained, narrow = attended(short), attended(long)
        with torch.no_grad():
            sampled = attended(short)
    assert trained.dtype == torch.bfloat16
    assert torch.equal(trained, wide.bfloat16()) and torch.equal(sampled, trained)
    assert not torch.equal(narrow, wide_long.bfloat16()) and torch.allclose(narrow.float(), wide_long, atol=0.05)
