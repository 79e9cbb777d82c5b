"""LoRA on a 4-bit base: what is quantised, training, resuming, export."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from lfpo.config.errors import UserError
from lfpo.config.models import LoraSettings
from lfpo.core.model import BASE
from lfpo.models import MaskedDiffusionLM, init_model, load_model, load_tokenizer, save_model
from lfpo.models.four_bit import BYTES_PER_WEIGHT, dequantized, original_shape, quantize
from lfpo.models.lora import attach, load_adapter, with_adapter
from lfpo.plan.flops import forward_flops
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from small_runs import choice_config, whole_and_resumed

bitsandbytes = pytest.importorskip("bitsandbytes")
IDS = tiny.random_ids(2, 7, seed=3)
CPU = torch.device("cpu")


SHAPES: dict[str, dict[str, Any]] = {
    "llada": {**tiny.LLADA_CONFIG, "d_model": 64, "mlp_hidden_size": 128},
    "dream": {**tiny.DREAM_CONFIG, "hidden_size": 128, "intermediate_size": 192},
}


@pytest.fixture(params=sorted(SHAPES))
def pair(request: pytest.FixtureRequest) -> tuple[MaskedDiffusionLM, MaskedDiffusionLM]:
    """The same model without and with quantised layers."""
    plain, model = (init_model({**SHAPES[request.param], "init_std": 0.1}, seed=0) for _ in range(2))
    quantize(model.backbone, CPU, torch.float32)
    return plain, model


def test_the_matrices_of_the_layers_are_quantised_and_nothing_else(pair: tuple[MaskedDiffusionLM, MaskedDiffusionLM]):
    before, model = pair
    kinds: dict[bool, set[str]] = {True: set(), False: set()}
    held = numbers = 0
    for name, p in model.backbone.named_parameters():
        kinds[isinstance(p, bitsandbytes.nn.Params4bit)].add(name.split(".")[-2])
        original = before.backbone.get_parameter(name)
        assert original_shape(p) == original.shape
        if isinstance(p, bitsandbytes.nn.Params4bit):
            assert p.quant_state.quant_type == "nf4"
            scales = (p.quant_state.absmax, p.quant_state.state2.absmax)
            held += p.nbytes + sum(s.nbytes for s in scales)
            numbers += original.numel()
            error = (dequantized(p) - original).norm() / original.norm()
            assert 0.08 < error < 0.1  # 16 levels for normal numbers
    linear = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert kinds[True] == linear
    biased = {"q_proj", "k_proj", "v_proj"} if model.family.name == "dream" else set()
    assert kinds[False] - biased == {"embed_tokens", "lm_head", "norm", "input_layernorm", "post_attention_layernorm"}
    assert held / numbers == pytest.approx(BYTES_PER_WEIGHT, rel=0.05)
    lengths = torch.tensor([7, 7])
    assert forward_flops(model, lengths, 3) == forward_flops(before, lengths, 3)


def test_forward_and_gradients_use_the_dequantised_matrices(pair: tuple[MaskedDiffusionLM, MaskedDiffusionLM]):
    """Also after a forward without gradients, which may repack the weights."""
    same, model = pair
    with torch.no_grad():
        for name, p in model.backbone.named_parameters():
            same.backbone.get_parameter(name).copy_(dequantized(p))
    grads = []
    for policy in (model, same):
        reference = attach(policy, LoraSettings(r=2))
        with torch.no_grad():
            for (_, p), (_, q) in zip(policy.factors(), reference.factors(), strict=True):
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
                q.copy_(p)
            policy.eval()
            quiet = reference(IDS)
        policy.train()
        logits = policy(IDS)
        torch.testing.assert_close(logits, quiet, rtol=1e-5, atol=1e-5)
        grads.append(torch.autograd.grad(logits.square().mean(), [p for _, p in policy.factors()]))
    for a, b in zip(*grads, strict=True):
        assert a.abs().sum() > 0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_biases_are_saved_in_the_dtype_of_the_model(tmp_path: Path):
    """On some processors bitsandbytes casts a layer's bias, in place, to the dtype of what the layer reads."""
    model = init_model(SHAPES["dream"], seed=0, dtype=torch.bfloat16)
    quantize(model.backbone, CPU, torch.bfloat16)
    layer = model.backbone.model.layers[1].self_attn.v_proj
    layer.bias.data = layer.bias.data.float()
    save_model(model, tmp_path / "saved")
    assert {weight.dtype for weight in tiny.read_weights(tmp_path / "saved").values()} == {torch.bfloat16}


@pytest.fixture
def wide(llada: Path, tmp_path: Path) -> Path:
    """A checkpoint whose rows are multiples of a block."""
    save_model(init_model({**SHAPES["llada"], "init_std": 0.1}, seed=0), tmp_path / "wide", load_tokenizer(llada))
    return tmp_path / "wide"


FOUR_BIT: dict[str, Any] = {
    "lora": {"r": 2, "lora_alpha": 4, "target_modules": "as-published"},
    "load_in_4bit": True,
}


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_resumes_exactly_and_exports_a_plain_model(dtype: str, wide: Path, tmp_path: Path):
    more: dict[str, Any] = {"dtype": dtype, "objective": {"name": "coupled_grpo"}, "gradient_checkpointing": True}
    whole, resumed = whole_and_resumed(tmp_path, wide, 2, **FOUR_BIT, **more)
    for (_, a), (_, b) in zip(whole.model.factors(), resumed.model.factors(), strict=True):
        assert torch.equal(a, b)
    width = getattr(torch, dtype)
    exported = load_model(tmp_path / "whole" / "model", dtype=width)
    with torch.no_grad():
        moved = whole.model(IDS).float()
        assert not torch.allclose(with_adapter(whole.model, BASE)(IDS).float(), moved, atol=1e-3)
        # The adapter is merged into the quantised base, not into the original weights.
        torch.testing.assert_close(exported(IDS).float(), moved, atol=1e-4 if dtype == "float32" else 0.1, rtol=0.05)
        assert (load_model(wide, dtype=width)(IDS).float() - moved).abs().max() > 0.2
    checkpoint = latest_checkpoint(tmp_path / "whole")
    assert checkpoint is not None
    original = load_model(wide)
    attach(original, LoraSettings(r=2, lora_alpha=4, target_modules="as-published"))
    load_adapter(original, checkpoint / "model")  # the adapter also loads onto the original weights
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(original.factors(), whole.model.factors(), strict=True))


def test_where_it_cannot_work(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(said: str, **settings: Any) -> None:
        with pytest.raises(UserError, match=said):
            LFPOTrainer(args=choice_config(tmp_path, llada, **{**FOUR_BIT, **settings}))

    fails(r"layer 0.self_attn.q_proj has rows of 32, not a multiple of 64")
    fails("'load_in_4bit' needs 'lora'", lora=None)
    fails("'load_in_4bit' does not work with 'fsdp'", fsdp=True)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    fails("load_in_4bit needs the package bitsandbytes: pip install bitsandbytes")
