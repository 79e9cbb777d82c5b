"""d-TreeRPO, the objective and the engine in examples/objectives: trees, losses by hand, a run."""

import dataclasses
import math
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from dtree_rpo import DTreeRPO, node_values, nodes, tree_rollout

from letter_runs import ROWS, config, metrics
from letters import rollouts
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.contrib.states import StateViews
from lfpo.core.trajectory import GIVES, Trajectory
from lfpo.models import load_model
from lfpo.objectives.needs import check_rollouts
from lfpo.rollout.sampling import rollout
from lfpo.train.rl import LFPOTrainer
from loss_cases import loss_of

LN2 = log(2)
HALF = 0.5 + LN2 - 1  # k3 where the other policy gives a token half the probability
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12]]


def plugged_in(**knobs: Any) -> dict[str, Any]:
    """Settings of a run with trees of four leaves."""
    objective = {"name": "dtree_rpo:DTreeRPO", "tree": [2, 2], **knobs}
    return {"objective": objective, "engine": {"name": "dtree_rpo:tree_engine"}, "num_generations": 4}


def grown(steps: int) -> Trajectory:
    """The first edges reveal a, or an e in the middle; the second the rest. What follows the e is not scored."""
    reveal = {2: ["011", "011", "101", "101"], 4: ["123", "032", "212", "303"]}[steps]
    return rollouts(["abe", "aae", "bee", "aeb"], reveal, steps=steps)


def test_each_parent_is_a_unit_of_its_own():
    views = DTreeRPO(tree=[2, 2]).views(grown(2), torch.zeros(4, dtype=torch.float64), [0, 1, 2, 3], 0)
    level, unit = views.state.tolist(), views.unit.tolist()
    of_level = [[u for u, at in zip(unit, level, strict=True) if at == wanted] for wanted in (0, 1)]
    assert [len(units) for units in of_level] == [2, 4]  # edges: two of the root, two of each of its children
    assert len(set(of_level[0])) == 1 and len(set(of_level[1])) == 2
    assert not set(of_level[0]) & set(of_level[1])


def test_edges_that_reveal_nothing_to_score_count_in_the_mean():
    t = rollouts(["aeb", "aea"], ["001", "001"], steps=2)  # the e comes at the first step
    signal = torch.zeros(2, dtype=torch.float64)
    objective = DTreeRPO(tree=[1, 2], beta=0.0, lambda_max=0.0)
    views = objective.views(t, signal, [0, 1], 0)
    assert isinstance(views, StateViews)
    views = dataclasses.replace(views, advantage=torch.tensor([0.5, 0.5, -0.5]).double())
    assert views.target.sum(-1).tolist() == [2, 0, 0]
    odds = {"___": "111 111 111"}
    assert loss_of(objective, views, signal, current=odds, old=odds) == pytest.approx(-0.5 / 3)


def test_siblings_are_distilled_by_their_advantages():
    """Both good, weights 3/4 and 1/4: q is (3/4 a, 1/4 b) at the first position, b alone at the second."""
    t = rollouts(["ab", "bb", "ba"], ["00", "01", "00"], steps=2)
    signal = torch.tensor([0.2 + log(3), 0.2, -1.0], dtype=torch.float64)
    knobs: dict[str, Any] = {"epsilon": 0.2, "beta": 0.0, "tau_max": 1.0, "decay": 0.0, "progress": 1.0}
    current = {"__": "112 121", "ab": "111 111", "b_": "111 111", "ba": "111 111"}
    losses = []
    for strength in (0.0, 0.5):
        objective = DTreeRPO(tree=[3, 1], lambda_max=strength, **knobs)
        views = objective.views(t, signal, [0, 1, 2], 0)
        losses.append(loss_of(objective, views, signal, current=current, old=current))
    kl = 0.75 * log(0.75 / 0.25) + 0.25 * log(0.25 / 0.25)
    assert losses[1] - losses[0] == pytest.approx(0.5 * (kl + LN2) / 2, rel=1e-6)


def test_it_trains_with_its_engine_and_not_with_another(llada: Path, tmp_path: Path):
    def length(prompts: Any, completions: Any, **_: Any) -> list[float]:
        return [float(len(c)) for c in completions]

    settings = plugged_in(num_iterations=2, lambda_max=0.1)
    trainer = LFPOTrainer(str(llada), length, args=config(tmp_path, max_steps=2, **settings), train_dataset=ROWS)
    trainer.train()
    rows = metrics(tmp_path / "run")[1:]
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    args = config(tmp_path / "other", **{**settings, "engine": {"name": "local"}})
    with pytest.raises(UserError, match="DTreeRPO needs 'tree', which this engine does not give"):
        LFPOTrainer(str(llada), length, args=args, train_dataset=ROWS)
    args = config(tmp_path / "other", **{**settings, "num_generations": 8})
    with pytest.raises(UserError, match="has 4 leaves; set 'num_generations' to that, found 8"):
        LFPOTrainer(str(llada), length, args=args, train_dataset=ROWS)
    sampler = SamplerConfig(gen_length=8, temperature=1.0).for_length(8, 4)
    with pytest.raises(UserError, match="DTreeRPO needs a model with full attention"):
        check_rollouts(DTreeRPO(), sampler, trained_block=4)
    check_rollouts(DTreeRPO(), sampler, {*GIVES, "tree"})


@pytest.mark.parametrize(
    "settings", [{}, {"block_length": 2, "early_stop": "eos"}, {"block_length": 4, "cache": "dual"}]
)
def test_leaves_share_what_their_node_says_and_no_more(checkpoint: Path, settings: dict[str, Any]):
    model = load_model(checkpoint)
    sampler = SamplerConfig(gen_length=8, steps=8, temperature=1.0, **settings).for_length(8)
    prompts, seeds = [p for p in PROMPTS for _ in range(6)], list(range(100, 118))
    t = tree_rollout(model, prompts, sampler, seeds, [2, 3])
    assert nodes(18, [2, 3])[6:12].tolist() == [[6, 6, 6], [6, 6, 7], [6, 6, 8], [6, 9, 9], [6, 9, 10], [6, 9, 11]]
    states = t.state_before(torch.full((18,), 4))
    for first in range(0, 18, 3):
        assert bool((states[first : first + 3] == states[first]).all())
        assert len({tuple(row) for row in t.tokens[first : first + 3].tolist()}) == 3
    assert len({tuple(row) for row in states.tolist()}) == 6
    whole = rollout(model, prompts[::6], sampler, seeds[::6])
    for name in ("prompt_ids", "tokens", "reveal_step", "entropy", "scheduled_steps", "nfe", "queries"):
        torch.testing.assert_close(getattr(t, name)[::6], getattr(whole, name))


@pytest.mark.parametrize(
    ("tree", "settings", "said"),
    [
        ([2, 2, 2], {}, "3 levels, which do not divide the sampler's 8 steps"),
        ([2, 2], {"steps": 16}, "16 steps for gen_length 8 have some that reveal none; lower sampler.steps"),
        ([2, 2], {"steps": None, "threshold": 0.9}, "reveal rule 'threshold'"),
        ([2, 2], {"alg": "origin"}, "reveal rule 'origin'"),
        ([2, 2], {"rule": "origin"}, "reveal rule 'origin'"),
        ([2, 2], {"early_stop": "both"}, "early_stop 'both'"),
    ],
)
def test_a_tree_that_a_sampler_cannot_grow_is_one_sentence(tree: list[int], settings: dict[str, Any], said: str):
    sampler = SamplerConfig(**({"gen_length": 8, "steps": 8} | settings)).for_length(8)
    with pytest.raises(UserError, match=said) as caught:
        DTreeRPO(tree=tree).check_sampler(sampler)
    assert "\n" not in str(caught.value)
    DTreeRPO(tree=[2, 2]).check_sampler(SamplerConfig(gen_length=8, steps=8).for_length(8))


def test_values_of_nodes_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 1.0])
    roots, inner = torch.tensor([0.375, 0.5]).repeat_interleave(4), torch.tensor([0.5, 0.25, 0, 1]).repeat_interleave(2)
    assert node_values(rewards, [2, 2]).tolist() == torch.stack([roots, inner, rewards], 1).tolist()
    assert node_values(rewards, [4]).tolist() == torch.stack([roots, rewards], 1).tolist()
