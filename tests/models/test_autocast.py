"""`bf16` on a CPU: on where a measured product says that it pays, in rollouts, updates and evaluation alike."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lfpo.config.models import LoraSettings
from lfpo.config.sft import SFTConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.model import CURRENT, OLD
from lfpo.core.rng import generator
from lfpo.models import MaskedDiffusionLM, autocast, init_model, load_tokenizer
from lfpo.models.autocast import LEAST_WIDTH, autocasts, bfloat16_gain, precision_of
from lfpo.models.layouts import LAYOUTS
from lfpo.models.placement import narrow_matrices
from lfpo.models.policies import load_policies, ready_to_sample
from lfpo.plan.estimate import Estimate
from lfpo.train.setup import about
from lfpo.train.sft import accumulate_sft_gradients
from tiny import random_ids

IDS = random_ids(2, 9, seed=3)


def fast(patch: pytest.MonkeyPatch, gain: float = 3.0) -> None:
    """A CPU on which a product in bfloat16 is so many times as fast."""
    patch.setattr(autocast, "has_bfloat16", lambda: True)
    patch.setattr(autocast, "bfloat16_gain", lambda: gain)


def settings(**keys: Any) -> LFPOConfig:
    return LFPOConfig(output_dir="-", task="words", **keys)


@pytest.mark.parametrize(
    ("keys", "width", "gain", "on", "says"),
    [
        ({}, 576, 3.0, True, "products in bfloat16"),
        ({}, 576, 1.1, False, "bf16 is off on this CPU: products are 1.1 times as fast here"),
        ({}, 128, 3.0, False, "too narrow a model, 128 of at least 256"),
        ({"bf16": False}, 576, 3.0, False, "products in float32"),
        ({"dtype": "bfloat16", "lora": LoraSettings(r=4)}, 576, 3.0, False, "products in bfloat16 (bf16 is off"),
        ({"load_in_4bit": True, "lora": LoraSettings(r=4)}, 576, 3.0, False, "without fsdp and load_in_4bit"),
    ],
)
def test_where_it_is_on(
    keys: dict[str, Any], width: int, gain: float, on: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(monkeypatch, gain)
    args = settings(**keys)
    assert autocasts(args, "cpu", width) is on
    assert says in precision_of(args, "cpu", width)
    assert autocasts(args, "cuda", width) is args.bf16  # whatever the CPU does


def test_a_cpu_without_fast_products_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autocast, "has_bfloat16", lambda: False)
    monkeypatch.setattr(autocast, "bfloat16_gain", lambda: 1 / 0)
    assert not autocasts(settings(), "cpu", 576)
    assert "no fast products of bfloat16 numbers" in precision_of(settings(), "cpu", 576)


def test_the_gain_is_the_ratio_of_the_best_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 takes 6, 4, 6, ... seconds and bfloat16 2, so the gain is 4 / 2."""
    taken = iter([6, 2, 4, 2] + [6, 2] * 3)
    clock, now = [0.0], [False]

    def perf_counter() -> float:
        clock[0] += next(taken) if now[0] else 0.0
        now[0] = not now[0]
        return clock[0]

    monkeypatch.setattr("time.perf_counter", perf_counter)
    for name in ("ROWS", "WIDTH"):  # of the product, which takes seconds on a CPU without the instructions
        monkeypatch.setattr(f"lfpo.models.autocast.{name}", 8)
    assert bfloat16_gain.__wrapped__() == 2.0


def wide_model() -> MaskedDiffusionLM:
    """A random model of one layer that is just wide enough."""
    shape: dict[str, Any] = {
        "n_layers": 1,
        "d_model": LEAST_WIDTH,
        "n_heads": 4,
        "mlp_hidden_size": 64,
        "vocab_size": 512,
    }
    shape |= {"embedding_size": 512, "init_std": 0.1}
    tokenizer = load_tokenizer("embedded")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    return init_model({**LAYOUTS["llada-8b"], **shape, **ids}, seed=0)


@torch.no_grad()
def test_all_policies_and_rollouts_compute_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    model, tokenizer = wide_model(), load_tokenizer("embedded")
    exact = model.hidden(IDS)
    policies, _ = load_policies(settings(), model, tokenizer, needs_base=True)
    assert {policy.autocast for policy in policies.values()} == {True}
    rounded = policies[CURRENT].hidden(IDS)
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.02
    assert rounded.dtype == torch.float32
    with ready_to_sample(policies[OLD], settings()) as ready:
        assert {p.dtype for p in ready.backbone.model.layers.parameters() if p.ndim == 2} == {torch.bfloat16}
        assert torch.equal(ready.hidden(IDS), rounded)
    assert "products in bfloat16" in about(settings(), model)


def test_gradients_are_near_those_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    found: dict[bool, Any] = {}
    args, model = SFTConfig(output_dir="-", model="embedded", tasks={"words": 1.0}), wide_model()
    batch = {i: ([5, 6, 7 + i], [20 + i, 30, 40, model.eos_id]) for i in range(4)}
    args = replace(args, batch_size=4, bf16=True)
    for on in (True, False):
        load_policies(replace(args, bf16=on), model, object(), needs_base=False, needs_old=False)
        assert model.autocast is on
        model.zero_grad()
        loss = accumulate_sft_gradients(model, args, batch, generator(0))
        found[on] = loss, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert found[on][1].dtype == torch.float32
    (narrow, gradient), (exact, reference) = found[True], found[False]
    assert narrow != exact
    assert narrow == pytest.approx(exact, rel=0.01)
    assert (gradient - reference).norm() / reference.norm() < 0.02


@pytest.mark.long
def test_the_plan_of_a_cpu_run_counts_the_copies_of_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 bytes for each weight of the layers' matrices."""
    fast(monkeypatch)
    model = wide_model()
    estimate = Estimate(settings(), model.config, gpus=1, prompt_length=10, device="cpu")
    matrices = sum(p.numel() for _, p in narrow_matrices(model.backbone))
    assert list(estimate.parts["copies for sampling"]) == [0, 2 * matrices, 0, 0]
    fast(monkeypatch, 1.0)
    plain = Estimate(settings(), model.config, gpus=1, prompt_length=10, device="cpu")
    assert "copies for sampling" not in plain.parts


def test_a_second_trainer_s_settings_replace_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    model, tokenizer = wide_model(), load_tokenizer("embedded")
    load_policies(settings(), model, tokenizer, needs_base=False)
    assert model.ready is not None
    load_policies(replace(settings(), bf16=False), model, tokenizer, needs_base=False)
    assert model.ready is None
