"""SLIM-RL, EBPO, Mask-Aware policy gradients and DTM: losses by hand on three letters, and what they draw."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fused_cases import chunks_of, random_case, within
from letters import Table, rollouts
from lfpo.contrib.canvases.cap import Cap
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.views import noised
from lfpo.objectives.dtm import DTM, mixture_sum
from lfpo.objectives.ebpo import EBPO
from lfpo.objectives.mask_aware import MaskAware
from lfpo.objectives.sequences import gauss_legendre
from lfpo.objectives.slim_rl import SLIMRL
from loss_cases import GOOD_BAD, HALF, LN2, loss_of, masks
from view_cases import check_rate, hidden, views_of

DOUBLE = 1 - LN2  # k3 where the other policy gives a token twice the probability


@pytest.mark.parametrize(
    ("kl", "of_half", "of_double"), [("k1", LN2, -LN2), ("k2", LN2**2 / 2, LN2**2 / 2), ("k3", HALF, DOUBLE)]
)
def test_slim_rl_by_hand(kl: Any, of_half: float, of_double: float):
    """Three masks of abe and of be; the last hides nothing of the first. Weights are 5/18, 8/18 and 5/18."""
    t = rollouts(["abe", "bee"])
    objective = SLIMRL(nodes=3, epsilon=0.1, beta=0.3, kl=kl)
    views = objective.mask_views(t, masks(["_be", "_e_"], ["___", "b__"], ["abe", "___"]))
    current = {"_be": "211 111 111", "___": "112 121 112", "_e_": "121 111 111", "b__": "111 121 111"}
    old = {"_be": "112 111 111", "___": "211 121 112", "_e_": "112 111 111", "b__": "111 112 111"}
    # Ratios 2 (clipped), and 1/2 of one of three tokens (clipping would help, so it does not apply).
    good = 5 / 18 * -1.1 + 8 / 18 * -(2 ** (-1 / 3))
    # Ratios 2 (not clipped: it hurts), 1/2 (clipped at 0.9) and 1.
    bad = 5 / 18 * 0.5 * 2 + 8 / 18 * 0.5 * 0.9 + 5 / 18 * 0.5
    divergence = 5 / 18 * 2 * of_half + 8 / 18 * 2 * of_double
    loss = loss_of(objective, views, GOOD_BAD, current=current, old=old)
    assert loss == pytest.approx((good + bad + 0.3 * divergence / 3) / 5, rel=1e-6)


def test_slim_rl_s_probabilities_fall_over_blocks_and_keep_their_mean():
    assert SLIMRL(spread=0.2).probabilities(0.5, 3).tolist() == pytest.approx([0.6, 0.5, 0.4])
    # Five blocks: cosines 1, 1/sqrt(2), 0, ...
    root = 0.1 / math.sqrt(2)
    expected = [0.4, 0.3 + root, 0.3, 0.3 - root, 0.2]
    assert SLIMRL(spread=0.2).probabilities(0.3, 5).tolist() == pytest.approx(expected)
    # No probability leaves (0, 1).
    assert SLIMRL(spread=0.2).probabilities(0.05, 2).tolist() == pytest.approx([0.1, 0.0], abs=1e-6)
    assert SLIMRL(spread=0.2).probabilities(0.95, 2).tolist() == pytest.approx([1.0, 0.9], abs=1e-6)
    assert SLIMRL().probabilities(0.3, 1).tolist() == [0.3]


def test_slim_rl_hides_tokens_with_these_probabilities_and_one_at_least():
    size, objective = 3000, SLIMRL(nodes=3, spread=0.2)
    views = views_of(objective, rollouts(["ababab"] * size, block_length=2))
    levels = gauss_legendre(3)[0].tolist()
    for node, level in enumerate(levels):
        mask = hidden(views.select((views.state == node).nonzero().flatten()), 2)
        assert len(mask) == size and bool(mask.any(-1).all())
        p = objective.probabilities(level, 3).repeat_interleave(2)
        forced = float((1 - p).prod()) / 6  # one of the six is hidden where none would be
        for column, rate in enumerate((p + forced).tolist()):
            check_rate(mask[:, column, None], rate)


def test_slim_rl_asks_nothing_about_prompts_that_are_left_out():
    views = SLIMRL().views(rollouts(["abab"] * 5), torch.tensor([0.5, -0.5, 1e-10, 0, 0]), range(5), 0)
    assert views.row.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_ebpo_by_hand(beta: float):
    """Blocks of two tokens. Of the first rollout a, b and e are scored: its second block has one token."""
    t = rollouts(["abea", "bbab"], block_length=2)
    objective = EBPO(mc_samples=2, epsilon=0.2, beta=beta)
    views = objective.mask_views(t, masks(["_b__", "_b_b"], ["____", "b_a_"]))
    assert views.weight[:, 2:].tolist() == [[2, 0, 1, 0], [2, 0, 2, 0], [1, 1, 1, 0], [0, 2, 0, 2]]
    current = {
        "_b__": "211 111 121 111",
        "____": "111 121 111 111",
        "_b_b": "121 111 111 111",
        "b_a_": "111 121 111 112",
    }
    old = {"_b__": "112 111 112 111", "____": "111 112 111 111", "_b_b": "112 111 111 111", "b_a_": "111 112 111 112"}
    # Changes of E in units of log 2: (2 * 1 - 1 * 1 + 1) / 2 and (2 * 1 + 2 * 1) / 2. The first ratio is clipped.
    expected = (-1.2 + 0.5 * 4 + beta * (LN2**2 + (2 * LN2) ** 2) / 2) / 2
    loss = loss_of(objective, views, GOOD_BAD, current=current, old=old, base=old)
    assert loss == pytest.approx(expected, rel=1e-6)


def test_ebpo_hides_each_number_of_a_block_s_tokens_alike():
    """The five masks of a rollout hide each number once. The second block has one scored token, always hidden."""
    size = 1500
    t = rollouts(["ababbeaaaa"] * size, block_length=5)
    views = views_of(EBPO(mc_samples=5), t)
    assert len(views) == 5 * size and views.unit.unique(return_counts=True)[1].tolist() == [5] * size
    first = views.target[:, 2:7].view(5, size, 5).sum(-1)
    assert bool(views.target[:, 7].all()) and not views.target[:, 8:].any() and bool(hidden(views, 8).all())
    for number in range(1, 6):
        check_rate(first[0, :, None] == number, 1 / 5)
    assert first.sort(0).values.T.unique(dim=0).tolist() == [[1, 2, 3, 4, 5]]
    for column in range(5):
        check_rate(views.target[:size, 2 + column, None], 3 / 5)


def test_ebpo_s_gradient_is_finite_for_any_ratio():
    """Log-ratios of 40 log 9 and more, whose exponential float32 does not hold: 0 where clipped, large where not."""
    objective, n = EBPO(mc_samples=1, epsilon=0.2), 60
    t = rollouts(["a" * n])
    views = objective.mask_views(t, torch.ones(1, 1, n, dtype=torch.bool))
    for advantage in (1.0, -1.0):
        models: Any = {CURRENT: Table({"_" * n: "911 " * n}), OLD: Table({"_" * n: "199 " * n})}
        accumulate_gradients(objective, models, views, torch.tensor([advantage]).float(), update_tokens=1)
        assert math.isfinite(float(models[CURRENT].scale.grad))


def log_chance(odds: int, others: Sequence[int], tau: float) -> float:
    """Log of the chance that a position is chosen before others."""
    return math.log(odds ** (1 / tau) / (odds ** (1 / tau) + sum(other ** (1 / tau) for other in others)))


STATES = {
    "current": {"___": "211 131 114", "a__": "111 121 112", "b__": "111 113 121"},
    "old": {"___": "112 131 113", "a__": "111 112 112", "b__": "111 112 131"},
}


def mask_aware_case(**knobs: Any) -> tuple[MaskAware, Any]:
    """a, then b and e of the first rollout; b, then e of the second, whose last token stands after its EOS and is not
    scored, but competes."""
    objective = MaskAware(epsilon=0.1, epsilon_high=0.2, **knobs)
    t = rollouts(["abe", "bea"], ["012", "012"])
    row, first, last = (torch.tensor(x) for x in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 2, 0, 1]))
    return objective, objective.segment_views(t, row, first, last)


@pytest.mark.parametrize(("weight", "tau"), [(0.0, 1.0), (1.0, 1.0), (0.5, 2.0)])
def test_mask_aware_by_hand(weight: float, tau: float):
    objective, views = mask_aware_case(position_weight=weight, position_temperature=tau)
    # Tokens: p of a and of b doubles, that of e stays; p of b stays, that of e goes from 2/4 to 3/5.
    good, bad = 2 ** (2 / 3), (6 / 5) ** (1 / 2)
    assert good > 1.2 and bad < 1.2
    tokens = -1.2 + 0.5 * bad
    # Positions: a against the best of the others; b and e end the rollout and have no competitor.
    good = math.exp((log_chance(2, [3, 4], tau) - log_chance(1, [3, 3], tau)) / 3)
    second = log_chance(1, [3, 4], tau) - log_chance(1, [3, 3], tau) + log_chance(3, [2], tau) - log_chance(2, [3], tau)
    bad = math.exp(second / 2)
    assert 1 < good < 1.2 and bad > 1
    loss = loss_of(objective, views, GOOD_BAD, **STATES)
    assert loss == pytest.approx((tokens + weight * (-good + 0.5 * bad)) / 2, rel=1e-6)


def test_mask_aware_s_gradient_of_an_unchanged_policy_is_that_of_reinforce():
    """A times the derivative of the mean of l + m, by finite differences along the scale of all logits."""
    objective, views = mask_aware_case()
    models: Any = {CURRENT: Table(STATES["current"]), OLD: Table(STATES["current"])}
    accumulate_gradients(objective, models, views, GOOD_BAD, update_tokens=10**6)

    def value(scale: float) -> float:
        model: Any = Table(STATES["current"])
        model.scale.data.fill_(scale)
        predictions = Predictions(views, {CURRENT: model})
        both = predictions.logp() + objective.position_logp(predictions, CURRENT)
        of_target = (both * predictions.weight_T).detach()
        row = views.row[predictions.view_T]
        return -sum(float(GOOD_BAD[r] * of_target[row == r].sum()) / (3 if r == 0 else 2) for r in (0, 1)) / 2

    expected = (value(1 + 1e-5) - value(1 - 1e-5)) / 2e-5
    assert float(models[CURRENT].scale.grad) == pytest.approx(expected, rel=1e-6) and abs(expected) > 0.01


def test_mask_aware_s_chances_are_finite_for_logits_far_apart():
    """Logits some hundred to thousand apart, so that exponentials of differences underflow."""
    objective, views = mask_aware_case(position_temperature=1e-3)
    models: Any = {CURRENT: Table(STATES["current"]), OLD: Table(STATES["old"])}
    loss, _ = accumulate_gradients(objective, models, views, GOOD_BAD, update_tokens=10**6)
    assert math.isfinite(loss) and math.isfinite(float(models[CURRENT].scale.grad))


def test_mask_aware_draws_segments_and_scores_what_they_revealed():
    """Eight tokens in eight steps, four segments of two; the EOS is revealed in the third."""
    size = 1500
    views = views_of(MaskAware(segments=4, mc_samples=2), rollouts(["ababaeab"] * size, ["01234567"] * size))
    scored, targets = views.weight[:, 2:] > 0, views.target[:, 2:]
    asked = {tuple(row) for row in scored.int().tolist()}
    assert asked == {(1, 1, 0, 0, 0, 0, 0, 0), (0, 0, 1, 1, 0, 0, 0, 0), (0, 0, 0, 0, 1, 1, 0, 0)}
    assert len(views) == 2 * size and bool((views.state % 2 == 0).all())
    assert torch.equal(targets, torch.arange(8) >= views.state[:, None])  # what follows competes, also after the EOS
    assert torch.equal(hidden(views, 2), targets)
    for segment in range(3):
        check_rate((views.state.view(size, 2) == 2 * segment).any(-1, keepdim=True), 2 / 3)


def test_mask_aware_takes_every_step_where_these_are_fewer_than_segments():
    """Steps 0, 3 and 5 of six, in thirty-two segments."""
    views = views_of(MaskAware(segments=32), rollouts(["abab"], ["0335"], steps=6))
    assert views.state.tolist() == [0, 3, 5]
    assert views.weight[:, 2:].tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert views.target[:, 2:].int().tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]]


# DTM.


@pytest.mark.parametrize("control", [1.0, 0.5])
def test_dtm_by_hand(control: float):
    """States _be and ___ of abe and bee, reward 1 and 0; the odds of letters are those of the tables."""
    trajectory = rollouts(["abe", "bee"])
    rows = torch.arange(2)
    masked = torch.tensor([[True, False, False], [True, True, False]])
    weight = masked / masked.sum(-1, keepdim=True)
    views = noised(trajectory, rows, masked, masked & trajectory.until_eos, weight_SC=weight)
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


def test_dtm_s_minimiser_is_the_tilted_posterior():
    """At c = 1, over tokens drawn from p_old with rewards R(y), the minimiser is p_old e^(h R) normalised."""
    torch.manual_seed(0)
    p_old, reward, h = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.0, 1.0, 0.5]), 0.7
    z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    eye = torch.eye(3, dtype=torch.float64)
    tilt = torch.expm1(h * reward.double())
    for _ in range(100):  # every token stands once, with the weight that it is drawn with
        loss = mixture_sum(
            z.expand(3, 3), p_old.log().expand(3, 3), eye, eye.clone(), torch.arange(3), p_old, tilt * p_old
        )
        (gradient,) = torch.autograd.grad(loss, z)
        z.data -= gradient
    expected = p_old * (h * reward).exp()
    assert torch.allclose(z.softmax(-1)[0], expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("heads", ["own", "shared"])
@pytest.mark.parametrize("cap", [None, Cap(2.0)])
def test_mixture_sum_is_the_plain_loss(cap: Cap | None, heads: str):
    """Value and gradients of states and head, in one chunk and in many."""
    case = random_case(heads)
    a, b = case.r, case.weight - 0.8
    target = a[:, None] * within(case.hidden_ref @ case.head_ref.T, cap).softmax(-1)
    target += torch.nn.functional.one_hot(case.y, 11) * b[:, None]
    hidden, head = case.hidden.requires_grad_(), case.head.requires_grad_()
    plain = -(target * within(hidden @ head.T, cap).log_softmax(-1)).sum()
    expected = torch.autograd.grad(plain, (hidden, head))
    for elements in (2**20, 22):
        with chunks_of(elements):
            loss = mixture_sum(hidden, case.hidden_ref, head, case.head_ref, case.y, a, b, logit_map=cap)
        assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
        for found, wanted in zip(torch.autograd.grad(loss, (hidden, head)), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_dtm_s_states():
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
