"""Model FLOPs against a count of what the rollout and the update really compute."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.config.sampler import SamplerConfig
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import BASE, CURRENT, OLD
from lfpo.core.observer import Observer
from lfpo.core.structure import PolicyForward
from lfpo.models import load_model
from lfpo.objectives import make_objective
from lfpo.plan.flops import forward_flops, pass_flops, rollout_flops
from lfpo.rollout.sampling import rollout
from rollout_cases import count_forwards

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12]]


def test_a_forward_by_hand(llada: Path):
    model = load_model(llada)
    config = model.backbone.config
    d, layers = config.hidden_size, config.num_hidden_layers
    weights = sum(p.numel() for p in model.backbone.model.layers.parameters())
    expected = 2 * weights * 7 + 4 * layers * d * (3 * 3 + 4 * 4) + 2 * config.vocab_size * d * 5
    assert forward_flops(model, torch.tensor([3, 4]), 5) == pytest.approx(expected)
    # With a cache 2 and 4 tokens are run; each attends to all 3 and 6 of its row.
    expected = 2 * weights * (2 + 4) + 4 * layers * d * (2 * 3 + 4 * 6)
    assert forward_flops(model, torch.tensor([3, 6]), 0, torch.tensor([2, 4])) == pytest.approx(expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 8},
        {"steps": 4},
        {"block_length": 4, "early_stop": "eos"},
        {"threshold": 0.1, "block_length": 4, "early_stop": "eos"},
        {"cfg_scale": 1.0, "steps": 4},
    ],
)
def test_a_rollout_counts_every_position_it_predicts(llada: Path, monkeypatch: pytest.MonkeyPatch, settings: dict):
    model = load_model(llada)
    model.eos_id = 40  # frequent enough that some rows stop early
    shapes, positions, head = count_forwards(model, monkeypatch), list[int](), model.head

    def counting_head(x: torch.Tensor) -> torch.Tensor:
        positions.append(x.shape[0])
        return head(x)

    monkeypatch.setattr(model, "head", counting_head)
    t = rollout(model, PROMPTS, SamplerConfig(gen_length=8, temperature=3.0, **settings), [1, 2, 3])
    assert int(t.nfe.sum()) == sum(rows for rows, _ in shapes)
    heads = 2 * model.backbone.config.vocab_size * model.backbone.config.hidden_size * sum(positions)
    bodies = sum(
        int(n) * forward_flops(model, torch.tensor([len(p) + 8]), 0) for n, p in zip(t.nfe, PROMPTS, strict=True)
    )
    assert rollout_flops(model, t) == pytest.approx(bodies + heads)


def test_an_update_counts_a_backward_as_two_forwards_and_each_policy_it_asks(llada: Path):
    model = load_model(llada)
    t = rollout(model, PROMPTS, SamplerConfig(gen_length=8, temperature=1.0), [1, 2, 3])
    signal = torch.tensor([1.0, -1.0, 0.5])
    # Current counts three; then old; then base. Before the update, stable_drl asks current and old, rldf current.
    forwards = {"wd1": 3, "lfpo": 4, "diffu_grpo": 5, "stable_drl": 5, "rldf": 5}
    knobs: dict[str, dict[str, Any]] = {"stable_drl": {"shared_masks": True}, "rldf": {"threshold": 0.0}}
    for name, times in forwards.items():
        objective = make_objective({"name": name, **knobs.get(name, {})})
        views = objective.views(t, signal, [1, 2, 3], 0)
        once = forward_flops(model, views.attention_mask.sum(-1), int(views.target.sum()))
        for tokens in (10**6, 1):
            policies = {CURRENT: model, OLD: model.frozen_copy(), BASE: model.frozen_copy()}
            observer = Observer()
            observer.passes = passes = list[PolicyForward]()
            accumulate_gradients(objective, policies, views, signal.abs(), update_tokens=tokens, observer=observer)
            spent = [pass_flops(policies[ran.policy], ran) for ran in passes]
            assert sum(spent) == pytest.approx(times * once)
