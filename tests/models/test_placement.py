"""Offloaded layers, and weights cast for rollouts, give the same numbers."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.visited import replay
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.models.lora import attach, with_adapter
from lfpo.models.placement import frozen_copy_on_cpu, sampling
from lfpo.rollout.sampling import rollout
from lfpo.train.rl import LFPOTrainer
from merge_error import adapted, errors
from small_runs import choice_config
from tiny import random_ids

IDS = random_ids(2, 7, seed=3)


def layers(policy: MaskedDiffusionLM) -> list[nn.Module]:
    return list(policy.backbone.model.layers)


def addresses(layer: nn.Module) -> list[int]:
    return [p.data_ptr() for p in layer.parameters()]


@torch.no_grad()
def test_one_layer_at_a_time_is_loaded(checkpoint: Path):
    model = load_model(checkpoint)
    policy = frozen_copy_on_cpu(model)
    stored = [addresses(layer) for layer in layers(policy)]
    assert not {a for layer in stored for a in layer} & {p.data_ptr() for p in model.parameters()}
    loaded: list[list[bool]] = []

    def look(*_: Any) -> None:
        loaded.append([addresses(layer) != at for layer, at in zip(layers(policy), stored, strict=True)])

    for layer in layers(policy):
        layer.mlp.register_forward_hook(look)  # type: ignore[union-attr]
    assert torch.equal(policy.hidden(IDS), model.frozen_copy().hidden(IDS))
    assert loaded == [[True, False], [False, True]]
    assert [addresses(layer) for layer in layers(policy)] == stored
    # Also after a forward that raises.
    layers(policy)[0].mlp.register_forward_hook(lambda *_: 1 / 0)  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError):
        policy.hidden(IDS)
    assert [addresses(layer) for layer in layers(policy)] == stored


def matrix_dtypes(policy: MaskedDiffusionLM) -> set[torch.dtype]:
    return {p.dtype for p in policy.backbone.model.layers.parameters() if p.ndim == 2}


@torch.no_grad()
@pytest.mark.parametrize("lora", [False, True])
def test_weights_cast_once_give_what_autocast_gives(lora: bool, checkpoint: Path):
    model = load_model(checkpoint)
    policy = attach(model, LoraSettings(r=2)) if lora else frozen_copy_on_cpu(model)
    for p in policy.parameters():
        p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    wide = policy.hidden(IDS)
    policy.autocast = True
    narrow = policy.hidden(IDS)
    assert narrow.dtype == torch.float32
    assert 1e-3 < (narrow - wide).abs().median() < 0.1
    stored = [addresses(layer) for layer in layers(policy)]
    with sampling(policy, cast=True, move_to_device=not lora):
        assert matrix_dtypes(policy) == {torch.bfloat16}
        copied = [addresses(layer) for layer in layers(policy)]
        assert torch.equal(policy.hidden(IDS), narrow)
        assert [addresses(layer) for layer in layers(policy)] == copied  # the forward loaded nothing
    assert [addresses(layer) for layer in layers(policy)] == stored
    assert torch.equal(policy.hidden(IDS), narrow)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_rollouts_under_autocast_are_those_the_update_sees(cache: Any, checkpoint: Path):
    model = load_model(checkpoint)
    model.autocast = True
    settings = SamplerConfig(gen_length=6, block_length=3, steps=6, temperature=1.0, cache=cache)
    with sampling(model, cast=True, move_to_device=False):
        trajectory = rollout(model, [[5, 6, 7]], settings, [1])
    model.autocast = False
    wide = rollout(model, [[5, 6, 7]], settings, [1])
    model.autocast = True
    steps = trajectory.distinct_steps()[0]
    views = replay(trajectory, torch.zeros(len(steps), dtype=torch.long), steps)
    apart = 0.0
    for i, step in enumerate(steps.tolist()):
        view = views.select(torch.tensor([i]))  # one row, as sampled: bfloat16 rounding depends on the shape
        logp = Predictions(view, {CURRENT: model, OLD: model}).logp(OLD)
        revealed = (trajectory.reveal_step[0] == step).nonzero().flatten() + 3
        at = [view.target[0].nonzero().flatten().tolist().index(c) for c in revealed.tolist() if view.target[0, c]]
        sure = trajectory.confidence[0][revealed - 3][: len(at)].log()
        apart = max(apart, float((logp[at] - sure).abs().max()) if at else 0.0)
    if cache == "none":
        assert apart < 1e-5
    assert not torch.equal(trajectory.confidence, wide.confidence)


def test_the_head_is_not_rounded(llada: Path):
    model = load_model(llada)
    model.autocast = True
    assert torch.equal(model(IDS), model.hidden(IDS) @ model.head_weight.T)


@pytest.mark.long
def test_a_reference_in_cpu_memory_changes_nothing(llada: Path, tmp_path: Path):
    settings: dict[str, Any] = {"optimizer_steps_per_iteration": 1, "ema_decay": 0.5, "eval_steps": 0}
    settings["objective"] = {"name": "diffu_grpo", "num_iterations": 2}  # which has a base policy, too
    near = LFPOTrainer(args=choice_config(tmp_path / "near", llada, max_steps=2, **settings))
    near.train()
    settings["offload_reference"] = True
    LFPOTrainer(args=choice_config(tmp_path / "far", llada, max_steps=1, **settings)).train()
    far = LFPOTrainer(args=choice_config(tmp_path / "far", llada, max_steps=2, **settings))
    far.train(resume=True)
    assert all(layer._forward_pre_hooks for layer in layers(far.reference))
    assert not any(layer._forward_pre_hooks for layer in layers(far.model))
    for name, policy in near.policies.items():
        for a, b in zip(policy.parameters(), far.policies[name].parameters(), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(near.model.head_weight, near.reference.head_weight)


def adapted_policy(checkpoint: Path) -> MaskedDiffusionLM:
    """A reference policy whose adapter adds a hundredth of the weights' size."""
    policy = attach(load_model(checkpoint, dtype=torch.float64), LoraSettings(r=4))
    for _, factor in policy.factors():
        factor.data.copy_(0.1 * torch.randn(factor.shape, generator=torch.Generator().manual_seed(factor.numel())))
    return policy


@torch.no_grad()
def test_a_merged_adapter_gives_the_same_and_is_taken_out_again(checkpoint: Path):
    policy = adapted_policy(checkpoint)
    other = with_adapter(policy, CURRENT)
    separate, current = policy.hidden(IDS), other.hidden(IDS)
    before = {name: p.clone() for name, p in policy.backbone.named_parameters()}
    assert not torch.allclose(separate, current)
    with suppress(ZeroDivisionError), sampling(policy, cast=False, move_to_device=False, merge=True):
        assert not [n for n, _ in policy.backbone.named_parameters() if "lora_" in n]
        torch.testing.assert_close(policy.hidden(IDS), separate, rtol=0, atol=2e-5)  # factors are float32
        raise ZeroDivisionError  # it is taken out after an error, too
    after = dict(policy.backbone.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], p) for name, p in before.items())
    assert policy.adapter == OLD
    assert torch.equal(policy.hidden(IDS), separate)
    assert torch.equal(other.hidden(IDS), current)
    with sampling(policy, cast=True, move_to_device=False, merge=True):
        assert matrix_dtypes(policy) == {torch.bfloat16}


def test_merging_in_bfloat16_costs_no_accuracy():
    """The documented measurement on a small model."""
    found = errors(adapted(64, 256, 8, 0.1), 128)
    assert 0 < found["merged"][1] < 1.2 * found["apart"][1]
    assert 0 < found["merged, from apart"][2] < 0.01
