"""Discrete Tilt Matching: loss by hand on three letters, its minimiser, its states, and the fused mixture loss."""

import math

import pytest
import torch

from letters import rollouts
from lfpo.objectives.dtm import DTM, mixture_sum
from lfpo.objectives.ops.fused import CHUNK_ELEMENTS
from lfpo.objectives.views import noised
from test_objectives import loss_of

LN2 = math.log(2)


@pytest.mark.parametrize("control", [1.0, 0.5])
def test_loss_by_hand(control: float):
    """States _be and ___ of abe and bee, reward 1 and 0; the odds of letters are those of the tables."""
    trajectory = rollouts(["abe", "bee"])
    rows = torch.arange(2)
    masked = torch.tensor([[True, False, False], [True, True, False]])
    weight = masked / masked.sum(-1, keepdim=True)
    views = noised(trajectory, rows, masked, masked & trajectory.counted, weight_SC=weight)
    current = {"_be": "211 111 111", "__e": "121 112 111"}
    old = {"_be": "112 111 111", "__e": "111 211 111"}
    objective = DTM(tilt=LN2, control=control)
    signal = objective.signal(torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0, 0]))
    assert signal.tolist() == pytest.approx([1.0, 0.0])  # e^(h R) - 1
    # The target of a is c (1, 1, 2) / 4, and 2 - c more of the letter; -log p is log 2 (1, 2, 2).
    a = control * (1 / 4 * 1 + 3 / 4 * 2) + (2 - control) * 1
    # Those of b and e: c (1, 1, 1) / 3 and c (2, 1, 1) / 4, and 1 - c more; -log p is log 2 (2, 1, 2) and (2, 2, 1).
    b = control * (2 / 3 * 2 + 1 / 3 * 1) + (1 - control) * 1
    e = control * (3 / 4 * 2 + 1 / 4 * 1) + (1 - control) * 1
    found = loss_of(objective, views, signal, current=current, old=old)
    assert found == pytest.approx(LN2 * (a + (b + e) / 2) / 2, rel=1e-6)


def test_minimiser_is_the_tilted_posterior():
    """At c = 1, over tokens drawn from p_old with rewards R(y), the minimiser is p_old e^(h R) normalised."""
    torch.manual_seed(0)
    p_old, reward, h = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.0, 1.0, 0.5]), 0.7
    z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    eye = torch.eye(3, dtype=torch.float64)
    tilt = torch.expm1(h * reward.double())
    for _ in range(2000):  # every token stands once, with the weight that it is drawn with
        loss = mixture_sum(
            z.expand(3, 3), p_old.log().expand(3, 3), eye, eye.clone(), torch.arange(3), p_old, tilt * p_old
        )
        (gradient,) = torch.autograd.grad(loss, z)
        z.data -= gradient
    expected = p_old * (h * reward).exp()
    assert torch.allclose(z.softmax(-1)[0], expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_mixture_sum_is_the_plain_loss(shared: bool, monkeypatch: pytest.MonkeyPatch):
    """Value and gradients of states and head, in one chunk and in many."""
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(7, 4, generator=g, dtype=torch.float64, requires_grad=True)
    hidden_old = torch.randn(7, 4, generator=g, dtype=torch.float64)
    head = torch.randn(11, 4, generator=g, dtype=torch.float64, requires_grad=True)
    head_old = head if shared else torch.randn(11, 4, generator=g, dtype=torch.float64)
    y = torch.randint(11, (7,), generator=g)
    a, b = torch.rand(7, generator=g), torch.rand(7, generator=g) - 0.3
    target = a[:, None] * (hidden_old @ head_old.detach().T).softmax(-1)
    target = target + torch.nn.functional.one_hot(y, 11) * b[:, None]
    plain = -(target * (hidden @ head.T).log_softmax(-1)).sum()
    expected = torch.autograd.grad(plain, (hidden, head))
    for elements in (2**20, 22):
        monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", elements)
        loss = mixture_sum(hidden, hidden_old, head, head_old, y, a, b)
        found = torch.autograd.grad(loss, (hidden, head))
        assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
        assert all(torch.allclose(f, e, atol=1e-6) for f, e in zip(found, expected, strict=True))


def test_states():
    """Sizes are uniform over 1 .. n; with blocks, whatever is masked is the end of the completion but for one block."""
    trajectory = rollouts(["abab"] * 400)
    sizes = DTM().views(trajectory, torch.zeros(400), range(400), 0).target.sum(-1)
    counts = sizes.bincount(minlength=5)
    assert counts[0] == 0 and (counts[1:] > 70).all()  # 100 each on average
    views = DTM(block_length=2).views(trajectory, torch.zeros(400), range(400), 0)
    masked_BC = views.target[:, -4:]
    states = {tuple(row) for row in masked_BC.int().tolist()}
    assert states == {(0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 1, 1), (1, 0, 1, 1), (0, 1, 1, 1), (1, 1, 1, 1)}
    assert torch.allclose(views.weight.sum(-1), torch.ones(400))


def test_wrong_rollouts_hold_theta_at_theta_old():
    """At c = 1 a reward of 0 gives no gradient where theta is theta_old, and pulls back where it is not."""
    z_old = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    eye, y, one, zero = torch.eye(6, dtype=torch.float64), torch.arange(5), torch.ones(5), torch.zeros(5)
    z = z_old.clone().requires_grad_()
    (at_old,) = torch.autograd.grad(mixture_sum(z, z_old, eye, eye, y, one, zero), z)
    assert torch.allclose(at_old, torch.zeros_like(at_old), atol=1e-7)
    moved = (z_old + eye[:5]).requires_grad_()
    (away,) = torch.autograd.grad(mixture_sum(moved, z_old, eye, eye, y, one, zero), moved)
    assert (away.gather(1, y[:, None]) > 0).all()
