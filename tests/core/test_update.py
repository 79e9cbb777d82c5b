import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfpo.config.train import LFPOConfig
from lfpo.core.engine import Variant
from lfpo.core.learner import accumulate_gradients, equal_weights, optimizer_blocks
from lfpo.core.lfpo import LFPO
from lfpo.core.model import CURRENT, OLD
from lfpo.core.optim import ema_update
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.objectives import OBJECTIVES
from lfpo.plan.work import fullest_rank
from lfpo.rollout.sampling import rollout
from small_runs import SHORT, policies_of, rewarded, step_of
from update_cases import Whole


def gradients(model: MaskedDiffusionLM) -> torch.Tensor:
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return flat


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


@functools.cache
def rolled_once(variant: Variant | None) -> Trajectory:
    """Rollouts of theta."""
    prompts = [[5, 6, 7], [5, 6, 7], [9, 10], [9, 10]]
    return rollout(policies_of("llada")[CURRENT], prompts, SHORT, [1, 2, 3, 4], variant=variant)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_policy_that_equals_theta_costs_no_forward_and_its_ratios_are_one(name: str, monkeypatch: pytest.MonkeyPatch):
    """Under two names one model gives the gradient that two equal ones give, in fewer forwards; and in every pass
    ratios of 1. GDPO's public code has 0.67 to 1.41 there, because old and current are scored on different masks."""
    objective, models, _, signal = step_of("llada", name)
    models[OLD] = models[CURRENT].frozen_copy()
    assert equal_weights(models[OLD], models[CURRENT])
    forwards, forward = [0], MaskedDiffusionLM.hidden

    def counting(*args: Any, **kwargs: Any) -> Any:
        forwards[0] += 1
        return forward(*args, **kwargs)

    monkeypatch.setattr(MaskedDiffusionLM, "hidden", counting)
    t = rewarded(objective, rolled_once(objective.variant(SHORT)))
    for inner in {0, objective.num_iterations - 1}:
        views, found = objective.views(t, signal, [1, 2, 3, 4], inner), []
        for old in (models[OLD], models[CURRENT]):
            before = forwards[0]
            loss, measures = accumulate_gradients(objective, {**models, OLD: old}, views, signal, update_tokens=10**6)
            found.append((loss, gradients(models[CURRENT]), measures, forwards[0] - before))
        (loss, gradient, measures, two), (shared_loss, shared_gradient, shared, one) = found
        assert shared_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(shared_gradient, gradient, rtol=1e-4, atol=1e-6)
        assert shared.keys() == measures.keys()
        assert one < two or "kl/old" not in measures
        if "ratio/mean" in shared:
            total, count = shared["ratio/mean"].tolist()
            assert total == pytest.approx(count, rel=1e-9) and shared["ratio/clipped"][0] == 0


def recipe_of(prompts: int, generations: int, steps: int) -> LFPOConfig:
    sizes = {"prompts_per_iteration": prompts, "num_generations": generations, "optimizer_steps_per_iteration": steps}
    return LFPOConfig(output_dir="unused", **sizes)


@given(st.integers(1, 24), st.integers(2, 12), st.integers(1, 9), st.integers(0, 3))
def test_groups_and_ranks_share_in_all_blocks_alike(prompts: int, generations: int, steps: int, iteration: int):
    size, steps = prompts * generations, min(steps, prompts * generations)
    blocks = optimizer_blocks(recipe_of(prompts, generations, steps), LFPO(), iteration)
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


@given(st.integers(1, 24), st.integers(2, 12), st.integers(1, 9))
def test_whole_groups_stay_whole_and_are_dealt_like_rollouts(prompts: int, generations: int, steps: int):
    args = recipe_of(prompts, generations, min(steps, prompts))
    groups = [block.view(-1, generations) // generations for block in optimizer_blocks(args, Whole(), 0)]
    assert all((group == group[:, :1]).all() for group in groups)
    assert torch.cat([group[:, 0] for group in groups]).sort().values.tolist() == list(range(prompts))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_no_rank_waits_for_another_where_the_numbers_divide():
    args = recipe_of(16, 8, 4)
    for ranks in (1, 2, 4, 8, 16):
        assert fullest_rank(args, LFPO(), ranks) == [32 // ranks] * 4
    assert fullest_rank(recipe_of(3, 4, 2), LFPO(), 2) == [4, 4]  # of the rank with two prompts
    assert [b.tolist() for b in optimizer_blocks(args, LFPO(), 0)] != [
        b.tolist() for b in optimizer_blocks(args, LFPO(), 1)
    ]
