"""The objectives: losses and advantages worked out by hand on three letters, and knobs."""

import math
from math import log
from typing import Any

import pytest
import torch
import yaml

from letters import rollouts
from lfpo.config.errors import UserError
from lfpo.config.lfpo import Advantage
from lfpo.config.sampler import SamplerConfig
from lfpo.core.advantages import group_advantages
from lfpo.core.draw import kept_tokens
from lfpo.core.views import noised
from lfpo.objectives import OBJECTIVES, make_objective
from lfpo.objectives.agrpo import AGRPO
from lfpo.objectives.diffu_grpo import DiffuGRPO
from lfpo.objectives.needs import check_rollouts
from lfpo.objectives.rejection import Rejection
from lfpo.objectives.sequences import masked_views
from lfpo.objectives.spg import SPG
from lfpo.objectives.trace_rl import TraceRL
from loss_cases import GOOD_BAD, loss_of


def test_diffu_grpo_by_hand():
    t = rollouts(["abe", "bee"])  # the last token of the second stands after its EOS and does not count
    objective = DiffuGRPO(p_mask_prompt=0.0, epsilon=0.2, epsilon_high=0.5, beta=0.1)
    loss = loss_of(
        objective,
        objective.views(t, GOOD_BAD, [0, 1], 0),
        GOOD_BAD,
        current={"___": "211 521 112"},
        old={"___": "215 121 112"},
        base={"___": "112 121 112"},
    )
    good = -1.5 - 0.5 - 1  # ratios 2 (clipped at 1.5), 1/2 (clipping would help, so it does not apply), 1
    bad = 0.5 * 2 + 0.5 * 0.8  # ratios 2 (not clipped: it hurts), 1/2 (clipped at 0.8)
    kl = (log(2) - 0.5) + 3 * 0 + 2 * (1 - log(2))  # base / current: 1/2 once, 1 twice, 2 twice
    assert loss == pytest.approx((good + bad + 0.1 * kl) / 5)


SPG_LOWER = 0.5 * (log(1 / 4) + (log(1 / 2) + log(1 / 4)) / 2)  # of the good rollout
SPG_BAD_LOWER = 0.5 * ((log(1 / 4) + log(1 / 2) + log(1 / 2)) / 3 + (log(1 / 4) + log(1 / 4)) / 2)
# Squares over the shares 3/3 and 2/3 of masked tokens: 1/16; 1/4 and 1/16 * 3/2, twice.
SPG_BAD_UPPER = (log((1 / 16) / 2) + 2 * log((1 / 4 + 3 / 32) / 2)) / 3 / 2


@pytest.mark.parametrize(
    ("bound", "bad"),
    [
        ("elbo", SPG_BAD_LOWER),
        ("eubo", SPG_BAD_UPPER),
        ("mix", 0.25 * SPG_BAD_UPPER + 0.75 * SPG_BAD_LOWER),
        ("none", 0.0),
    ],
)
def test_spg_by_hand(bound: Any, bad: float):
    t = rollouts(["aee", "bbe"], prompts=["a", "a"])
    objective = SPG(bound=bound, beta=2.0, mix=0.25)
    masks = [["_e_", "___"], ["___", "b__"]]  # two states for each rollout
    masked = torch.tensor([[[False, *(x == "_" for x in state)] for state in states] for states in masks])
    odds = {"___": "211 121 112", "_e_": "112 111 111", "b__": "111 112 121"}
    loss = loss_of(objective, masked_views(t, masked.transpose(0, 1)), GOOD_BAD, current=odds)
    assert loss == pytest.approx(-(1 * SPG_LOWER * 2 - 0.5 * bad * 3) / 5)


def agrpo_loss(objective: AGRPO, tables: dict[str, dict[str, str]], **sampler: Any) -> float:
    """Step 0 reveals b and step 1 a of the first rollout, at weight 1/2 each; one step the whole of the second."""
    t = rollouts(["ab", "be"], ["10", "00"], **sampler)
    return loss_of(objective, objective.views(t, GOOD_BAD, [0, 1], 0), GOOD_BAD, **tables)


def test_agrpo_by_hand_at_a_temperature():
    tables = {
        "current": {"__": "211 121", "_b": "112 111"},
        "old": {"__": "112 112", "_b": "111 111"},
        "base": {"__": "211 112", "_b": "112 111"},
    }
    objective = AGRPO(mc_samples=2, step_distribution="uniform", epsilon=0.2, beta=0.1)
    # At temperature 1/2 odds are squared. Ratios: (4/6) / (1/6), clipped, (1/6) / (2/6); 1, (1/6) / (4/6), clipped.
    surrogate = 0.5 * -1.2 + 0.5 * -0.5 + 0.5 * 1 + 0.5 * 0.8
    kl = 0.5 * (1 / 4 + log(4) - 1) + (4 - log(4) - 1)
    assert agrpo_loss(objective, tables, temperature=0.5) == pytest.approx((surrogate + 0.1 * kl) / 2)


@pytest.mark.parametrize("sampler", [{"top_k": 2}, {"top_p": 0.9}])
def test_agrpo_by_hand_among_the_tokens_the_sampler_kept(sampler: dict):
    tables = {"current": {"__": "211 121", "_b": "112 111"}, "old": {"__": "132 123", "_b": "312 111"}}
    objective = AGRPO(mc_samples=2, step_distribution="uniform", epsilon=0.75)
    # The old policy keeps b and e at both positions of the first state, a and e in the second.
    ratios = [(4 / 5) / (4 / 13), (1 / 5) / (9 / 13), (1 / 2) / (9 / 13), (1 / 5) / (9 / 13)]
    expected = (0.5 * -1.75 + 0.5 * -ratios[1] + 0.5 * (ratios[2] + ratios[3])) / 2
    assert ratios[0] > 1.75
    assert agrpo_loss(objective, tables, temperature=0.5, **sampler) == pytest.approx(expected)


def test_agrpo_cannot_score_what_was_not_drawn():
    for sampler in (SamplerConfig(remasking="random"), SamplerConfig(temperature=1.0, cfg_scale=1.0)):
        with pytest.raises(UserError, match=r"AGRPO needs tokens drawn (at random|without guidance)"):
            check_rollouts(AGRPO(), sampler)
    check_rollouts(AGRPO(), SamplerConfig(temperature=0.5))


def test_trace_rl_by_hand():
    t = rollouts(["abe", "beb"], ["021", "201"])
    objective = TraceRL(shrink=2, epsilon=0.2, beta=0.1)
    loss = loss_of(
        objective,
        objective.views(t, GOOD_BAD, [0, 1], 0),
        GOOD_BAD,
        current={"___": "211 521 112", "a_e": "111 121 111"},
        old={"___": "215 121 112", "a_e": "111 112 111"},
    )
    # States: a and e of the first (ratios 2, 1), b of the first (2), b and e of the second (2, 1/2).
    surrogate = (-1.2 - 1) / 2 - 1.2 + (0.5 * 2 + 0.5 * 0.8) / 2
    kl = 3 * (1 / 2 + log(2) - 1) + (2 - log(2) - 1)  # old / current, summed over a state's tokens
    assert loss == pytest.approx((surrogate + 0.1 * kl) / 3)


def test_rejection_by_hand():
    t = rollouts(["abe"])
    hidden = torch.tensor([[True, False, True], [False, True, False]])
    shares = torch.tensor([[0.5], [0.25]])
    views = noised(t, torch.tensor([0, 0]), hidden, hidden, weight_SC=(1 / (shares * 3)).expand(2, 3))
    loss = loss_of(Rejection(), views, torch.ones(1), current={"_b_": "211 111 112", "a_e": "111 521 111"})
    expected = -(2 / 3 * (log(1 / 2) + log(1 / 2)) + 4 / 3 * log(1 / 4)) / 2
    assert loss == pytest.approx(expected, rel=1e-6)


ONE = 0.5 / (0.5 + 1e-4)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mean", [0.75, -0.25, -0.25, -0.25, 0.5, -0.5]),
        ("zscore", [x / (math.sqrt(3) / 4 + 1e-4) for x in (0.75, -0.25, -0.25, -0.25)] + [ONE, -ONE]),
        ("over_mean", [3, -1, -1, -1, 0.2, -0.2]),  # over 1/4 and 5/2
        ("leave_one_out", [1.0, -1 / 3, -1 / 3, -1 / 3, 1.0, -1.0]),
    ],
)
def test_advantages_by_hand(kind: Advantage, expected: list[float]):
    rewards = torch.tensor([1, 0, 0, 0, 3, 2], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    advantage = group_advantages(rewards, group, kind)
    torch.testing.assert_close(advantage, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-7)
    order = torch.tensor([4, 0, 1, 5, 2, 3])  # groups need not stand together
    torch.testing.assert_close(group_advantages(rewards[order], group[order], kind), advantage[order])


def test_advantages_over_a_mean_that_is_not_above_zero_are_zero():
    rewards, group = torch.tensor([0, 0, 1, -1, 1, -3, 1, 1.0]), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    assert group_advantages(rewards, group, "over_mean").tolist() == [0] * 8


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - {"rejection", "dtm"}))
def test_a_prompt_with_one_rollout_has_no_advantage(name: str):
    objective, rewards = make_objective({"name": name}), torch.tensor([1.0, 0.0, 0.5])
    if name == "mdpo":
        rewards = rewards[:, None]
    with pytest.raises(UserError, match="num_generations"):
        objective.signal(rewards, torch.tensor([0, 0, 1]))


def test_trace_rl_leaves_out_prompts_too_easy_or_too_hard_and_keeps_rollouts_that_are_just_average():
    prompts = [[1, 1, 1, 1, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]]  # means 4/5, 1/5; 5/6, 1/6
    rewards = torch.tensor([x for p in prompts for x in p], dtype=torch.float64)
    group = torch.tensor([i for i, p in enumerate(prompts) for _ in p])
    signal = TraceRL().signal(rewards, group)
    assert (signal[:10] != 0).all() and not signal[10:].any()
    assert signal[0].item() == pytest.approx(0.2 / (0.4 + 1e-4))
    average = TraceRL().signal(torch.tensor([0.0, 0.5, 1.0]), torch.zeros(3, dtype=torch.long))[1]
    assert 0 < average < 1e-9


# Objective -> values that its knobs refuse.
REFUSED = {
    "lfpo": "beta=0.0 beta=.nan timesteps=0 baseline=1.5 baseline=-0.1",
    "diffu_grpo": "p_mask_prompt=1.5 num_iterations=0 advantage=loo epsilon_high=-2.0",
    "unigrpo": "beta=-0.1 min_step=-1",
    "coupled_grpo": "min_ratio=0.0 max_ratio=1.0 epsilon=-1.0",
    "spg": "bound=upper beta=0.0 beta=0.5 mix=1.1 p_mask=-0.1 num_masks=0 block_length=0",
    "agrpo": "mc_samples=0 step_distribution=entropic",
    "wd1": "temperature=0.0 p_mask_prompt=-0.5",
    "trace_rl": "shrink=0 max_accuracy=2.0",
    "rejection": "masks=0",
    "espo": "mc_samples=0 epsilon=-0.1",
    "gdsd": "epsilon=1.0 psi=-1.0",
    "rldf": "threshold=1.5 kl=k4 states=0",
    "justgrpo": "epsilon_high=-1.0",
    "bgpo": "dual_clip=0.5",
    "cj_grpo": "beta=-1.0",
    "gdpo": "nodes=0",
    "egspo": "aggregation=max",
    "stable_drl": "clip=0.0 mix=2.0",
    "slim_rl": "nodes=0 spread=1.5 kl=k4 beta=-1.0 max_accuracy=2.0",
    "ebpo": "mc_samples=0 epsilon=-0.1",
    "mask_aware": "segments=0 mc_samples=0 position_weight=-1.0 position_temperature=0.0",
    "dtm": "tilt=0 num_iterations=0 block_length=0",
}


@pytest.mark.parametrize(("name", "knob"), [(name, knob) for name, knobs in REFUSED.items() for knob in knobs.split()])
def test_a_knob_out_of_range_is_named_with_its_value(name: str, knob: str):
    key, _, text = knob.partition("=")
    with pytest.raises(UserError, match=rf"\b{key}\b") as caught:
        make_objective({"name": name, key: yaml.safe_load(text)})
    assert text.removeprefix(".") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"name": "unigrpo", "min_step": 99, "diffusion_steps": 100}, "diffusion_steps 100"),
        ({"name": "coupled_grpo", "min_ratio": 0.9}, "must be ordered"),
        ({"name": "trace_rl", "min_accuracy": 0.9, "max_accuracy": 0.1}, "min_accuracy"),
        ({"name": "lfpo", "positive_weight": 0.0, "negative_weight": 0.0}, "zero"),
        ({"beta": 0.1}, "'name' is missing"),
        ({"name": 3}, "'name' is missing"),
        ({"name": "collections:OrderedDict"}, "not a dataclass"),
        ({"name": "failing:Fialing"}, "has no 'Fialing'"),
    ],
)
def test_bad_knobs_are_named(knobs: dict, named: str):
    with pytest.raises(UserError, match=named) as caught:
        make_objective(knobs)
    assert "\n" not in str(caught.value)


def test_tokens_kept_by_hand():
    scores = torch.tensor([[5, 1, 3, 1], [1, 1, 1, 1]]).log()  # 5/10, 1/10, 3/10, 1/10; ties
    all_of, top = [True] * 4, [True, False, True, False]
    assert kept_tokens(scores, None, None).tolist() == [all_of, all_of]
    assert kept_tokens(scores, 2, None).tolist() == [top, all_of]  # equals of the k-th are kept
    assert kept_tokens(scores, 3, None)[0].tolist() == all_of
    assert kept_tokens(scores, 4, None).tolist() == kept_tokens(scores, 9, 1.0).tolist() == [all_of, all_of]
    assert kept_tokens(scores, None, 0.45)[0].tolist() == [True, False, False, False]
    # The token that crosses top_p is kept; of equals, the leftmost go first.
    assert kept_tokens(scores, None, 0.6).tolist() == [top, [True, True, True, False]]
    assert kept_tokens(scores, None, 0.85)[0].tolist() == [True, True, True, False]
    assert kept_tokens(scores, 1, 0.6)[0].tolist() == [True, False, False, False]
    assert kept_tokens(scores, 3, 0.45)[0].tolist() == [True, False, False, False]
