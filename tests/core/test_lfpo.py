"""The LFPO loss: goldens, hand-computed values, and the statements of the method's documentation as tests."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from lfpo.config.errors import UserError
from lfpo.core.fused import rectified_sum
from lfpo.core.lfpo import LFPO
from lfpo.core.rectified import rectified_loss
from lfpo.models import load_model
from small_runs import LFPO_PAPER, rolled
from soon import soon

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "lfpo.json").read_text())


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_case(seed: int, t: int = 6, v: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z, z_ref = (torch.randn(t, v, generator=g, dtype=torch.float64) * 3 for _ in range(2))
    return z, z_ref, torch.randint(v, (t,), generator=g), torch.rand(t, generator=g, dtype=torch.float64)


def fused_loss(z: torch.Tensor, z_old: torch.Tensor, y: torch.Tensor, r: torch.Tensor, **knobs: Any) -> torch.Tensor:
    """The fused sum of one token at a time, [T]: with the identity as the head, hidden states are logits."""
    head = torch.eye(z.shape[1], dtype=z.dtype)
    tokens = zip(z.split(1), z_old.split(1), y.split(1), r.split(1), strict=True)
    return torch.stack(
        [
            rectified_sum(hidden, hidden_old, head, head, token, reward, **knobs)
            for hidden, hidden_old, token, reward in tokens
        ]
    )


LOSSES = {"plain": rectified_loss, "fused": fused_loss}
each_loss = pytest.mark.parametrize("loss_of", LOSSES.values(), ids=LOSSES)
plain_soon = pytest.mark.parametrize("loss_of", soon(LOSSES.values(), 0), ids=LOSSES)  # hundreds of steps


@each_loss
@pytest.mark.parametrize("case", GOLDENS, ids=lambda c: f"beta{c['beta']}-T{len(c['y'])}")
def test_goldens(case: dict, loss_of: Any):
    z = double(case["z_theta"]).requires_grad_()
    loss = loss_of(z, double(case["z_ref"]), torch.tensor(case["y"]), double(case["r"]), beta=case["beta"])
    torch.testing.assert_close(loss, double(case["per_token_loss"]), rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(loss.mean(), z)
    torch.testing.assert_close(gradient, double(case["grad_z_theta_of_mean"]), rtol=1e-9, atol=1e-9)


@each_loss
@given(seed=st.integers(0, 10**6), beta=st.floats(0.05, 3.0))
@settings(max_examples=30)
def test_gradient_is_r_pi_plus_minus_rest(loss_of: Any, seed: int, beta: float):
    z, z_ref, y, r = random_case(seed)
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(z, z_ref, y, r, beta=beta).sum(), z)
    plus = ((1 - beta) * z_ref + beta * z).softmax(-1)
    minus = ((1 + beta) * z_ref - beta * z).softmax(-1)
    expected = r[:, None] * plus - (1 - r[:, None]) * minus - (2 * r[:, None] - 1) * F.one_hot(y, z.shape[1])
    torch.testing.assert_close(gradient, expected.detach(), rtol=1e-9, atol=1e-9)


@plain_soon
def test_negatives_saturate(loss_of: Any):
    """Descending a pure negative (r = 0) slows down by itself."""
    z_ref, y, r = torch.zeros(1, 5, dtype=torch.float64), torch.tensor([2]), double([0.0])
    norms, z = [], z_ref.clone()
    for _ in range(2000):
        z = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(z, z_ref, y, r, beta=1.0).sum(), z)
        norms.append(gradient.norm().item())
        z = z - 0.5 * gradient
    assert norms[-1] < 0.01 * norms[0]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(norms))
    assert -20 < float(z.detach().log_softmax(-1)[0, 2]) < -4


@plain_soon
def test_optimum_is_kl_regularised_rl_at_half_beta(loss_of: Any):
    """With mean reward rbar(v) per token under pi_ref, log pi/pi_ref ~ (rbar - its mean) * 2 / beta, to first order."""
    beta, rbar = 0.5, double([0.52, 0.5, 0.48])
    p = torch.full((3,), 1 / 3, dtype=torch.float64)
    z_ref, z = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for _ in range(500):
        z = z.detach().requires_grad_()
        loss_T = loss_of(z.expand(3, 3), z_ref, torch.arange(3), rbar, beta=beta)
        z = z - torch.autograd.grad((loss_T * p).sum(), z)[0]
    ratio = (z - z_ref[0]).log_softmax(-1) - p.log()
    torch.testing.assert_close(ratio.detach(), (rbar - 0.5) * 2 / beta, atol=4e-3, rtol=0)


@each_loss
def test_ablation_weights_split_the_loss(loss_of: Any):
    z, z_ref, y, r = random_case(6)
    both = loss_of(z, z_ref, y, r, beta=0.3)
    positive = loss_of(z, z_ref, y, r, beta=0.3, negative_weight=0.0)
    negative = loss_of(z, z_ref, y, r, beta=0.3, positive_weight=0.0)
    torch.testing.assert_close(positive + negative, both)
    plus = (0.7 * z_ref + 0.3 * z).log_softmax(-1).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(positive, -r * plus / 0.3)


PUBLISHED = {name: value for name, value in LFPO_PAPER.items() if name != "name"}
STEP = 0.5 / (math.sqrt(3) / 4 + 1e-4)  # the standard deviation of (1, 0, 1, 1), and epsilon


@pytest.mark.parametrize(
    ("groups", "knobs", "advantages"),
    [
        # Means 1/2 and 1.
        ("10 11", {**PUBLISHED, "clip": 5.0}, [STEP, -STEP, 0, 0]),
        ("10 11", PUBLISHED, [1, -1, 0, 0]),  # clipped
        # Means 1/2 and 3/4; the range is 1.
        ("10 1110", {"clip": 1.0, "baseline": 1.0}, [0.5, -0.5, 0.25, 0.25, 0.25, -0.75]),
        # Means 1/2, 1 and 0. A lower baseline imitates groups that are right and leaves groups that are wrong.
        ("10 11 00", {"clip": 1.0, "deviation": "range", "baseline": 0.5}, [0.75, -0.25, 0.5, 0.5, 0, 0]),
        ("10 11 00", {"clip": 1.0, "deviation": "range", "baseline": 0.0}, [1, 0, 1, 1, 0, 0]),
        (
            "10 11 00",
            {"clip": 4.0, "deviation": "batch", "baseline": 0.5},
            [x / 0.5001 for x in (0.75, -0.25, 0.5, 0.5, 0, 0)],
        ),
    ],
)
def test_r_by_hand(groups: str, knobs: dict[str, Any], advantages: list[float]):
    """r = 1/2 + A / 2c for rewards 0 and 1, written as digits."""
    rewards = double([float(x) for x in groups.replace(" ", "")])
    group = torch.tensor([i for i, digits in enumerate(groups.split()) for _ in digits])
    torch.testing.assert_close(LFPO(**knobs).signal(rewards, group), 0.5 + double(advantages) / (2 * knobs["clip"]))


@pytest.mark.parametrize("deviation", ["batch", "range"])
def test_a_batch_whose_rewards_are_all_equal_says_nothing(deviation: Any):
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    for reward in (0.0, 1.0, -0.3):
        alike = torch.full((6,), reward, dtype=torch.float64)
        torch.testing.assert_close(LFPO(baseline=0.5, deviation=deviation).signal(alike, group), double([0.5] * 6))


@given(
    rewards=st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=4, max_size=12).filter(
        lambda x: len(set(x)) > 1
    ),
    offset=st.floats(-10, 10),
    scale=st.floats(0.01, 100),
    baseline=st.floats(0, 1),
)
def test_r_does_not_depend_on_the_scale_of_rewards(rewards: list[float], offset: float, scale: float, baseline: float):
    """So a reward for format that all rollouts have, or a negative one, imitates nothing that is wrong."""
    reward, group = double(rewards), torch.arange(len(rewards)) // 2
    group[-1] = group[-2]
    form = LFPO(clip=0.8, deviation="range", baseline=baseline)
    expected = form.signal(reward, group)
    torch.testing.assert_close(form.signal(offset + scale * reward, group), expected, rtol=0, atol=1e-6)


def test_raw_reward_is_taken_as_it_is_and_must_fit():
    objective = LFPO(reward_transform="raw")
    assert objective.signal(double([0.0, 0.25, 1.0]), torch.zeros(3, dtype=torch.long)).tolist() == [0.0, 0.25, 1.0]
    with pytest.raises(UserError, match="outside"):
        objective.signal(double([0.0, 2.0]), torch.zeros(2, dtype=torch.long))


def test_noised_states_are_random_masks_of_stratified_sizes(llada: Path):
    objective = LFPO(timesteps=4, states="noised")
    assert objective.needs == set()
    t = rolled(objective, load_model(llada), [[5, 6, 7]] * 2)
    tokens = torch.full_like(t.tokens, 5)
    tokens[1, 5] = t.eos_id
    t = dataclasses.replace(t, tokens=tokens, reveal_step=torch.arange(8).expand(2, 8))
    views = objective.views(t, torch.zeros(2), [3, 4], 0)
    assert views.row.tolist() == [0] * 4 + [1] * 4 and views.state.tolist() == [0, 1, 2, 3] * 2
    hidden = (views.input_ids == t.mask_id)[:, -8:]
    sizes = hidden.sum(-1).reshape(2, 4).sort().values
    assert (sizes.diff() == 2).all() and sizes.min() >= 1 and sizes.max() <= 8  # of 8 tokens, 2 apart
    assert (views.target[:, -8:] == (hidden & t.until_eos[views.row])).all()
    assert not views.target[4:, -2:].any() and hidden[4:, -2:].any()  # behind the EOS tokens are hidden, not scored
    shown = ~hidden & (views.input_ids[:, -8:] != t.tokens[views.row])
    assert not shown.any()
    again = objective.views(t, torch.zeros(2), [3, 4], 1)
    assert (again.input_ids != views.input_ids).any()  # another pass draws other masks
