"""The objectives after SPG's generation: losses by hand on three letters, what they draw, and defects not kept."""

import math
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

import peers
from letters import Table, rollouts
from lfpo.contrib.bgpo import BGPO
from lfpo.contrib.cj_grpo import CJGRPO
from lfpo.contrib.egspo import EGSPO
from lfpo.contrib.gdpo import GDPO
from lfpo.contrib.gdsd import GDSD
from lfpo.contrib.rldf import RLDF
from lfpo.contrib.stable_drl import StableDRL
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import CURRENT, OLD
from lfpo.core.predictions import Predictions
from lfpo.core.views import subset_masks
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.espo import ESPO
from lfpo.objectives.justgrpo import JustGRPO
from lfpo.objectives.sequences import elbo_views, masked_views
from lfpo.objectives.vrpo import VRPO
from loss_cases import GOOD_BAD, HALF, LN2, loss_of, masks
from small_runs import step_of
from view_cases import check_rate, views_of


def test_rldf_of_several_passes_by_hand():
    """States a__ and ___ of the first rollout, ___ and _ee of the second. The old policy is sure of b in ___ alone.
    Ratios 2, clipped, and 1 in the first's ___; 1.2 in _ee; else 1."""
    objective = RLDF(states=2, threshold=0.4, beta=0.0, num_iterations=2)
    views = objective.state_views(rollouts(["abe", "bee"], ["012", "100"]), torch.tensor([[1, 0], [0, 1]]))
    current = {"___": "211 121 112", "a__": "111 112 114", "_ee": "131 111 111"}
    old = {"___": "112 121 211", "a__": "111 112 111", "_ee": "121 111 111"}
    loss = loss_of(objective, views, GOOD_BAD, current=current, old=old)
    assert loss == pytest.approx(((-1 + 0.5) / 2 + (-1.2 - 1 + 0.6) / 3) / 2, rel=1e-6)


@pytest.mark.parametrize(("kl", "of_half"), [("k1", LN2), ("k2", LN2**2 / 2), ("k3", HALF)])
def test_rldf_kl_by_hand(kl: Any, of_half: float):
    t = rollouts(["be"], ["00"])
    objective = RLDF(states=1, beta=0.1, kl=kl)
    views = objective.state_views(t, torch.tensor([[0]]))
    tables = {"current": {"__": "121 111"}, "base": {"__": "112 111"}}
    loss = loss_of(objective, views, GOOD_BAD[:1], **tables)
    assert loss == pytest.approx((LN2 + 0.1 * of_half + log(3)) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("knobs", "good", "bad"),
    [
        ({}, (-1.5 + 0.1 * HALF) / 2, (0.5 * 4 + 0.1 * (0.25 + log(4) - 1)) / 2),
        ({"after_eos": False}, (-1.5 + 0.1 * HALF) / 2, 0.5 * 2 + 0.1 * HALF),
        ({"aggregation": "mean", "beta": 0.0}, -math.sqrt(2), 0.5 * 2),
        # KL of odds 1:2:1 from 1:1:2 is log(2) / 4, as is that of 1:1:2 from 2:1:1.
        ({"exact_kl": True}, (-1.5 + 0.1 * LN2 / 4) / 2, (0.5 * 4 + 0.1 * LN2 / 2) / 2),
        ({"exact_kl": True, "aggregation": "mean"}, -math.sqrt(2) + 0.1 * LN2 / 8, 0.5 * 2 + 0.1 * LN2 / 4),
    ],
)
def test_egspo_by_hand(knobs: dict[str, Any], good: float, bad: float):
    """The most uncertain step of the first reveals b and e; of the second b and, after its EOS, e."""
    t = rollouts(["abe", "bee"], ["011", "010"], entropy=[[0.5, 0.1, 0.9 + 1e-3], [0.9, 0.6, 0.5]])
    objective = EGSPO(steps=1, **{"beta": 0.1, **knobs})
    old = {"a__": "111 112 112", "___": "112 111 211"}
    current = {"a__": "111 121 112", "___": "121 111 112"}
    loss = loss_of(objective, objective.views(t, GOOD_BAD, [0, 1], 0), GOOD_BAD, current=current, old=old, base=old)
    assert loss == pytest.approx((good + bad) / 2, rel=1e-6)


# What is drawn.


def test_subsets_are_uniform_among_scored_positions():
    scored = torch.tensor([True, True, False, True, True]).repeat(4000, 1)
    drawn = subset_masks(scored, range(4000), 0, lambda n, _: torch.tensor([1, n - 1]))
    assert not drawn[:, :, 2].any()
    check_rate(drawn[0][:, scored[0]], 1 / 4)
    check_rate(drawn[1][:, scored[0]], 3 / 4)
    check_rate((drawn[0] & drawn[1])[:, scored[0]], 3 / 16)


@pytest.mark.parametrize(("text", "after_eos"), [("abe", True), ("abeaaa", False)])
def test_masks_of_the_elbo_hide_each_number_of_tokens_alike(text: str, after_eos: bool):
    """ESPO and GDSD from none, where the complement hides all, to all; BGPO and VRPO from one."""
    t = rollouts([text] * 1500)
    for kind, least in ((ESPO, 0), (GDSD, 0), (BGPO, 1), (VRPO, 1)):
        views = views_of(kind(mc_samples=1, after_eos=after_eos), t)
        assert least == 0 or len(views) == 1500  # no mask is without a scored token
        hidden = torch.zeros(1500, dtype=torch.long).index_add(0, views.row, (views.target.sum(-1) == 3).long())
        check_rate(hidden[:, None] == 1, 1 / 2 if least == 0 else 1 / 3)


def test_masks_of_gdpo_s_nodes_have_their_shares_of_the_scored_tokens():
    """Nodes 0.11, 0.5 and 0.89 of three tokens, rounded down; the first masks none."""
    views = views_of(GDPO(nodes=3, after_eos=False), rollouts(["abeaaa"] * 20))
    assert views.target.sum(-1).tolist() == [1] * 20 + [2] * 20


@pytest.mark.parametrize("after_eos", [True, False])
@pytest.mark.parametrize("name", ["espo", "gdsd", "justgrpo", "bgpo", "cj_grpo", "gdpo", "egspo"])
def test_tokens_after_the_first_eos_are_scored_on_request_only(name: str, after_eos: bool):
    """What comes after the EOS is revealed at steps of its own, the most uncertain ones."""
    objective = make_objective({"name": name, "after_eos": after_eos})
    block: dict[str, Any] = {"block_length": 1} if name == "justgrpo" else {}
    t = rollouts(["abeab"] * 20, ["01234"] * 20, entropy=[[0.1, 0.2, 0.3, 0.4, 0.5]] * 20, **block)
    views = objective.views(t, torch.ones(20, dtype=torch.float64), range(20), 0)
    completion = views.target[:, -5:]
    assert bool(completion[:, 3:].any()) == after_eos and bool(completion[:, :3].any())
    assert bool(views.target.any(-1).all())
    assert views.length.tolist() == [5 if after_eos else 3] * len(views)


def test_rldf_draws_states_by_their_mean_surprise_without_replacement():
    size = 1500
    t = rollouts(["abab"] * size, ["0012"] * size)
    t.confidence = torch.tensor([[0.5, 0.5, 0.25, 0.125]]).repeat(size, 1)  # means of -log p: 1, 2, 3 log 2
    for temperature, law in ((1.0, [2, 4, 8]), (0.5, [4, 16, 64])):
        views = views_of(RLDF(states=2, temperature=temperature), t)
        step = t.reveal_step[views.row].masked_fill(views.input_ids[:, 2:] != 3, 9).min(-1).values.view(size, 2)
        for value, weight in enumerate(law):
            check_rate((step[:, :1] == value), weight / sum(law))
        assert bool((step[:, 0] != step[:, 1]).all())
    step = views_of(RLDF(states=3, temperature=0.0), t.rows(torch.arange(2))).state.view(2, 3)
    assert step.tolist() == [[0, 1, 2]] * 2
    few = rollouts(["ab"] * 50, ["00"] * 50)
    assert len(views_of(RLDF(states=4), few)) == 200  # drawn again where a rollout has fewer steps


def test_states_never_show_an_end_that_was_not_placed_yet():
    """The last two tokens are revealed at the last step, so every earlier state hides them (RLDF's code shows them)."""
    t = rollouts(["abee"] * 20, ["0122"] * 20)
    views = views_of(RLDF(states=3), t)
    assert bool((views.input_ids[:, -2:] == 3).all())
    assert bool(views.target[:, -2].all()) and not views.target[:, -1].any()  # the first EOS is trained


# Published defects, and what is made of them.


def gdsd_gradient(moved: float, **knobs: float) -> float:
    """The gradient of the golden file's model on its own draws, when one parameter has moved from theta_old's."""
    case = peers.NEWER["cases"]["gdsd(psi=10,eps=4e-4,beta=1e-3,mc=2,on_policy)"]
    objective = make_objective({"name": "gdsd", "beta": 0.0, **knobs})
    views = GDSD().mask_views(peers.trajectory(), peers.masks(case).view(2, 2, 4, 13)[0, :, :, 5:])
    model: Any = peers.ClosedFormModel(moved)
    policies: Any = {CURRENT: model, OLD: peers.ClosedFormModel()}
    accumulate_gradients(objective, policies, views, peers.advantages(), update_tokens=10**6)
    return float(model.s.grad)


def test_gdsd_s_published_bounds_end_learning_after_one_small_step():
    start = gdsd_gradient(0.0)
    assert gdsd_gradient(1e-5) == pytest.approx(start, rel=1e-3)
    assert abs(gdsd_gradient(1e-3)) < 0.02 * start
    assert gdsd_gradient(3e-3) == 0.0
    assert gdsd_gradient(3e-3, epsilon=0.5) == pytest.approx(start, rel=0.01)


def test_bgpo_stays_finite_where_log_of_its_ratio_is_not():
    objective = BGPO(mc_samples=1, after_eos=False)
    views = elbo_views(rollouts(["a"]), masks(["_"]), after_eos=False)
    models: Any = {CURRENT: Table({"_": "199"}), OLD: Table({"_": "911"})}
    loss, _ = accumulate_gradients(objective, models, views, GOOD_BAD[:1], update_tokens=1)
    d = log(1 / 19) - log(9 / 11)
    assert d < -1 and loss == pytest.approx(-(1 + d))
    assert math.isfinite(float(models[CURRENT].scale.grad))


@pytest.mark.parametrize("shared", [True, False])
def test_stable_drl_s_weights_of_an_unchanged_policy(shared: bool):
    """As published, its old log-likelihood has masks of its own, so they say more about masks than about the policy."""
    objective, models, views, _ = step_of("llada", "stable_drl", shared_masks=shared)
    with torch.no_grad():
        found = objective.before_passes(views, lambda v, _: Predictions(v, models).logp(CURRENT))
    assert (found.state < 3).all() and len(found) == 12
    weights = found.weight.max(-1).values
    assert bool((weights - 1 / 4).abs().max() < 1e-6) == shared
    assert float(weights[:4].sum()) == pytest.approx(1, rel=1e-6)


def test_the_documented_defaults_are_those_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
    table = page.split("| name | likelihood")[1].split("\n\n")[0]
    rows = {line.split("`")[1]: [cell.strip() for cell in line.split("|")[-5:-1]] for line in table.splitlines()[2:]}
    assert rows.keys() == {name for name, path in OBJECTIVES.items() if "contrib" not in path}
    for name, (compared, passes, clip, kl) in rows.items():
        objective: Any = make_objective({"name": name})
        assert int(passes) == objective.num_iterations
        low, high = getattr(objective, "epsilon", None), getattr(objective, "epsilon_high", None)
        assert [None if x == "-" else float(x) for x in clip.split("/")] == ([low] if high is None else [low, high])
        assert ("base" in compared) == objective.needs_base
        assert kl == "-" or float(kl) == objective.beta
        assert (kl not in {"-", "0"}) == (objective.needs_base or name in ("trace_rl", "slim_rl"))


def test_justgrpo_by_hand():
    """The third rollout has no advantage and is left out."""
    t = rollouts(["abe", "bee", "aaa"], block_length=1)
    signal = torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64)
    objective = JustGRPO(epsilon=0.2)
    current = {"___": "211 111 111", "a__": "111 121 111", "ab_": "111 111 211"}
    current |= {"b__": "111 112 111", "be_": "111 111 112"}
    old = {"___": "121 111 111", "a__": "111 121 111", "ab_": "111 111 112", "b__": "111 121 111", "be_": "111 111 112"}
    loss = loss_of(objective, objective.views(t, signal, [0, 1, 2], 0), signal, current=current, old=old)
    # Ratios 2, 1, 1/2 of the good; 1/2, 2, 1 of the bad, with its last token after EOS.
    assert loss == pytest.approx((-1.2 - 1 - 0.5 + 0.5 * (0.8 + 2 + 1)) / 6, rel=1e-6)


@pytest.mark.parametrize("after_eos", [True, False])
def test_cj_grpo_by_hand(after_eos: bool):
    """Step 0 reveals a alone; step 1 the rest of the first rollout and all of the second."""
    t = rollouts(["abe", "bee"], ["011", "111"])
    objective = CJGRPO(epsilon=0.5, dual_clip=1.5, beta=0.1, after_eos=after_eos)
    old = {"___": "112 121 211", "a__": "111 112 112"}
    current = {"___": "211 121 112", "a__": "111 121 112"}
    loss = loss_of(objective, objective.views(t, GOOD_BAD, [0, 1], 0), GOOD_BAD, current=current, old=old, base=old)
    first = -1.5 + 0.1 * HALF
    second = -1.5 + 0.1 * HALF - 1 + 0.5 + 0.5
    last = 0.5 * 1.5 + 0.1 * HALF  # ratio 2, above the dual clip
    expected = first + ((second + last) / 5 if after_eos else second / 4)
    assert loss == pytest.approx(expected / 2, rel=1e-6)


def test_stable_drl_by_hand():
    """One mask of each rollout for theta and one for theta_old. The second's importance is capped at 3/4."""
    t = rollouts(["aee", "bbe"], prompts=["a", "a"])
    objective = StableDRL(num_masks=1, beta=2.0, mix=0.25, clip=0.75)
    views = masked_views(t, masks(["_e_", "b__"], ["___", "___"]))
    current, old = {"_e_": "112 111 111", "b__": "111 112 121"}, {"___": "211 112 112"}
    # E = log(1/4) of both, the second's E_old = (2 log(1/4) + log(1/2)) / 3; the first's is the mean of log(1/2) twice.
    weights = [1 / 2, 3 / 4]
    assert math.exp(log(1 / 4) - 5 / 3 * log(1 / 2)) > 3 / 4
    upper = log(1 / 4) - log(2 / 3) / 2
    good, bad = log(1 / 4), 0.25 * upper + 0.75 * log(1 / 4)
    expected = -(weights[0] * good - 0.5 * weights[1] * bad) / sum(weights)
    tables = {"current": current, "old": old}
    assert loss_of(objective, views, GOOD_BAD, **tables) == pytest.approx(expected, rel=1e-6)
