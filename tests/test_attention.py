"""Attention over packed rows, against the same rows padded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from cuda_stand_in import cuda_stand_in
from lfpo.models import attention, load_model
from lfpo.models.attention import Packed, bidirectional_attention
from tiny import random_ids

LENGTHS = (3, 1, 5, 5)


def inputs(kv_heads: int, dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], Packed]:
    rng = torch.Generator().manual_seed(0)
    tokens = sum(LENGTHS)
    made = [torch.randn(1, h, tokens, 8, generator=rng, dtype=dtype) for h in (4, kv_heads, kv_heads)]
    return made, Packed(LENGTHS, torch.tensor([0, 3, 4, 9, 14], dtype=torch.int32))


def varlen_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    starts_k: torch.Tensor,
    longest: int,
    longest_k: int,
    *,
    scale: float,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.attention.varlen.varlen_attn, which needs a GPU, from its documentation. query [T, H, D]."""
    assert starts.dtype == starts_k.dtype == torch.int32
    assert longest == longest_k == int((starts[1:] - starts[:-1]).max())
    groups = query.shape[1] // key.shape[1]
    assert enable_gqa == (groups > 1)
    out = torch.empty_like(query)
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        for h in range(query.shape[1]):
            q, k, v = query[start:end, h], key[start:end, h // groups], value[start:end, h // groups]
            out[start:end, h] = (q @ k.T * scale).softmax(-1) @ v
    return out


def varlen_of_torch_2_11(*args: Any, scale: float) -> torch.Tensor:
    """The same without grouped-query attention."""
    assert args[0].shape[1] == args[1].shape[1] == args[2].shape[1]
    return varlen_reference(*args, scale=scale)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("kernel", [None, varlen_reference, varlen_of_torch_2_11])
def test_a_token_attends_to_its_own_row_only(kernel: Any, kv_heads: int, monkeypatch: pytest.MonkeyPatch):
    (query, key, value), packed = inputs(kv_heads)
    if kernel is not None:
        monkeypatch.setattr(attention, "_varlen_supports", lambda _: True)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    module = torch.nn.Identity()
    found, _ = bidirectional_attention(module, query, key, value, None, scaling=0.3, packed=packed)
    row = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    block_diagonal = (row[:, None] == row)[None, None]
    whole = F.scaled_dot_product_attention(
        query, key, value, attn_mask=block_diagonal, scale=0.3, enable_gqa=kv_heads < 4
    )
    assert found.shape == (1, sum(LENGTHS), 4, 8)
    torch.testing.assert_close(found, whole.transpose(1, 2), rtol=1e-12, atol=1e-12)


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
    return [*made, attention.key_mask(real.to(device), dtype) if masked else None]


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
        assert mask is None or all(stride % attention.ALIGNED == 0 for stride in mask.stride()[:-1])
        found = bidirectional_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)[0].cpu()
    assert gpu.backends == [kernel]
    expected = by_hand(*attention_case(dtype, kv_heads, masked, window, "cpu"))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_a_cpu_runs_one_fused_kernel():
    for dtype, kv_heads, masked, _ in KERNELS:
        query, key, value, mask = attention_case(dtype, kv_heads, masked, 4, "cpu")
        with torch.profiler.profile() as profile:
            bidirectional_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {event.key for event in profile.key_averages()}


def on_gpu(kv_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Packed]:
    (query, key, value), packed = inputs(kv_heads, torch.float32)
    return query.to("cuda"), key.to("cuda"), value.to("cuda"), Packed(packed.lengths, packed.starts.to("cuda"))


def test_packed_rows_that_take_no_kernel_for_rows_of_different_lengths_take_one_call_each():
    with cuda_stand_in() as gpu:
        query, key, value, packed = on_gpu(2)
        bidirectional_attention(torch.nn.Identity(), query, key, value, None, packed=packed)
    assert gpu.backends == [SDPBackend.EFFICIENT_ATTENTION] * len(LENGTHS)


def test_autocast_decides_the_kernel_of_float32_values(monkeypatch: pytest.MonkeyPatch):
    """As over a 4-bit base, whose layers return their input's dtype."""
    seen: list[torch.dtype] = []

    def kernel(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(query.dtype)
        return varlen_reference(query, *args, **kwargs)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    with cuda_stand_in() as gpu:
        query, key, value, packed = on_gpu(4)
        with torch.autocast("cuda", torch.bfloat16):
            bidirectional_attention(torch.nn.Identity(), query, key, value, None, packed=packed, scaling=0.3)
            bidirectional_attention(torch.nn.Identity(), query, key, value, None)
    assert seen == [torch.bfloat16]
    assert gpu.backends == [SDPBackend.FLASH_ATTENTION]


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_states_and_gradients_are_those_of_padded_rows(autocast: bool, checkpointed: bool, checkpoint: Path):
    model = load_model(checkpoint, dtype=torch.float32 if autocast else torch.float64)
    model.autocast = autocast
    if checkpointed:
        model.checkpoint_layers()
    ids = random_ids(4, 6, seed=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1]])
    asked = mask.bool() & (mask.cumsum(-1) > 1)  # a row's first token is never scored
    results: list[Any] = []
    for states in (model.hidden(ids, mask)[asked], model.packed_hidden(ids, mask)[asked[mask.bool()]]):
        states.square().sum().backward()
        results.append((states.detach(), model.backbone.model.layers[0].mlp.up_proj.weight.grad))
        model.zero_grad()
    tolerance: dict[str, Any] = {"rtol": 0.1, "atol": 0.2} if autocast else {"rtol": 1e-10, "atol": 1e-10}
    for padded, packed in zip(*results, strict=True):
        torch.testing.assert_close(packed, padded, **tolerance)
