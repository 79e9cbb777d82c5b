"""Attention over packed rows, against the same rows padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

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


def test_the_kernel_is_for_half_precision_on_a_gpu():
    query = torch.zeros(1, 1, 1, 8)
    assert not attention._varlen_supports(query)
    assert not attention._varlen_supports(query.bfloat16())


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
