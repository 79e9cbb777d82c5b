from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rectified import rectified_loss
from lfpo.base.batching import left_pad
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.models.roles import CURRENT, OLD
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.lfpo import LFPO
from lfpo.objectives.views import passes
from lfpo.rollout.denoise import rollout
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.algorithm import accumulate_gradients, blocks_of, ema_update, equal_weights
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.work import fullest_rank
from small_runs import AS_PUBLISHED, step_of

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]


def gradients(model: MaskedDiffusionLM) -> torch.Tensor:
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return flat


@pytest.fixture
def setting(checkpoint: Path):
    """Policy, a reference that differs from it, views of four rollouts, and a signal for each; float64."""
    model = load_model(checkpoint, dtype=torch.float64)
    reference = model.frozen_copy()
    with torch.no_grad():
        for p in reference.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
    sampler = SamplerConfig(gen_length=8, temperature=1.0, steps=4)
    trajectory = rollout(reference, PROMPTS, sampler, [1, 2, 3, 4])
    objective = make_objective({**AS_PUBLISHED, "timesteps": 3})
    signal = torch.tensor([1.0, 0.0, 0.7, 0.5], dtype=torch.float64)
    views = objective.views(trajectory, signal, [1, 2, 3, 4], 0)
    return objective, {CURRENT: model, OLD: reference}, views, signal


@pytest.mark.parametrize("tokens", [1, 30, 10**6])
def test_the_size_of_a_pass_changes_no_gradient(setting, tokens: int):
    padded = accumulate_gradients(*setting, update_tokens=10**6)[0]
    expected = gradients(setting[1][CURRENT])
    in_passes = accumulate_gradients(*setting, update_tokens=tokens)[0]
    assert in_passes == pytest.approx(padded, rel=1e-12)
    torch.testing.assert_close(gradients(setting[1][CURRENT]), expected, rtol=1e-10, atol=1e-14)
    lengths = setting[2].attention_mask.sum(-1)
    for index in passes(setting[2], tokens):
        assert len(index) * lengths[index].max() <= tokens or len(index) == 1


def test_loss_is_the_mean_over_all_target_positions(setting):
    objective, policies, views, signal = setting
    loss = accumulate_gradients(*setting, update_tokens=10**6)[0]
    total, count = 0.0, 0
    with torch.no_grad():
        for i in range(len(views)):
            keep = views.attention_mask[i].bool()
            ids, target = views.input_ids[i][keep][None], views.target[i][keep]
            z, z_ref = policies[CURRENT](ids)[0][target], policies[OLD](ids)[0][target]
            y = views.labels[i][keep][target]
            r = signal[views.row[i]].expand(len(y))
            total += rectified_loss(z, z_ref, y, r, beta=objective.beta).sum().item()
            count += len(y)
    assert loss == pytest.approx(total / count, rel=1e-10)


def test_ema_by_hand(llada: Path):
    model = load_model(llada)
    reference = model.frozen_copy()
    before = reference.backbone.lm_head.weight.clone()
    with torch.no_grad():
        model.backbone.lm_head.weight.add_(1.0)
    assert not equal_weights(reference, model)
    ema_update(reference, model, 0.75)
    torch.testing.assert_close(reference.backbone.lm_head.weight, before + 0.25)
    ema_update(reference, model, 0.0)
    assert torch.equal(reference.backbone.lm_head.weight, model.backbone.lm_head.weight)


def test_rows_are_padded_on_the_left_by_hand():
    ids, mask = left_pad([[1, 2], [3]], pad_id=9)
    assert ids.tolist() == [[1, 2], [9, 3]]
    assert mask.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_policy_that_equals_theta_costs_no_forward(name: str, llada: Path, monkeypatch: pytest.MonkeyPatch):
    """Under two names one model gives the gradient that two equal ones give, in fewer forwards."""
    objective, models, views, signal = step_of(llada, name)
    models[OLD] = models[CURRENT].frozen_copy()
    assert equal_weights(models[OLD], models[CURRENT])
    forwards, forward = [0], MaskedDiffusionLM.hidden

    def counting(*args: Any, **kwargs: Any) -> Any:
        forwards[0] += 1
        return forward(*args, **kwargs)

    monkeypatch.setattr(MaskedDiffusionLM, "hidden", counting)
    found = []
    for old in (models[OLD], models[CURRENT]):
        before = forwards[0]
        loss, measures = accumulate_gradients(objective, {**models, OLD: old}, views, signal, update_tokens=10**6)
        found.append((loss, gradients(models[CURRENT]), measures, forwards[0] - before))
    (loss, gradient, measures, two), (shared_loss, shared_gradient, shared_measures, one) = found
    assert shared_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(shared_gradient, gradient, rtol=1e-4, atol=1e-6)
    assert shared_measures.keys() == measures.keys()
    assert one < two or "kl/old" not in measures


def recipe_of(prompts: int, generations: int, steps: int) -> LFPOConfig:
    sizes = {"prompts_per_iteration": prompts, "num_generations": generations, "optimizer_steps_per_iteration": steps}
    return LFPOConfig(output_dir="unused", **sizes)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(2, 12), st.integers(1, 9), st.integers(0, 3))
def test_groups_and_ranks_share_in_all_blocks_alike(prompts: int, generations: int, steps: int, iteration: int):
    size, steps = prompts * generations, min(steps, prompts * generations)
    blocks = blocks_of(recipe_of(prompts, generations, steps), LFPO(), iteration)
    assert torch.cat(blocks).sort().values.tolist() == list(range(size))
    in_block = torch.stack([block.bincount(minlength=size) for block in blocks])  # [K, R]
    for parts in (prompts, 1, 2, 3, 4, 8, 16):  # groups, then ranks
        first = 0
        for part in torch.arange(prompts).tensor_split(parts):
            last = first + len(part) * generations
            share = in_block[:, first:last].sum(1)
            even = first % steps == last % steps == 0
            assert share.max() - share.min() <= (0 if even else 2)
            first = last


class Whole(LFPO):
    whole_groups = True


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(2, 12), st.integers(1, 9))
def test_whole_groups_stay_whole_and_are_dealt_like_rollouts(prompts: int, generations: int, steps: int):
    args = recipe_of(prompts, generations, min(steps, prompts))
    groups = [block.view(-1, generations) // generations for block in blocks_of(args, Whole(), 0)]
    assert all((group == group[:, :1]).all() for group in groups)
    assert torch.cat([group[:, 0] for group in groups]).sort().values.tolist() == list(range(prompts))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_no_rank_waits_for_another_where_the_numbers_divide():
    args = recipe_of(16, 8, 4)
    for ranks in (1, 2, 4, 8, 16):
        assert fullest_rank(args, LFPO(), ranks) == [32 // ranks] * 4
    assert fullest_rank(recipe_of(3, 4, 2), LFPO(), 2) == [4, 4]  # of the rank with two prompts
    assert [b.tolist() for b in blocks_of(args, LFPO(), 0)] != [b.tolist() for b in blocks_of(args, LFPO(), 1)]
