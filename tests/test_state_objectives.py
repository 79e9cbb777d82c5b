"""MDPO and d-TreeRPO, whose signal has a number for each of several states: losses by hand, states, checks."""

from __future__ import annotations

import math
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from letters import LETTERS, rollouts
from lfpo.base.errors import UserError
from lfpo.objectives.dtree_rpo import DTreeRPO
from lfpo.objectives.mdpo import MDPO
from lfpo.objectives.needs import check_rollouts
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory
from lfpo.rollout.tree import node_values, nodes
from lfpo.train.rl import LFPOTrainer
from test_objectives import loss_of
from test_train import ROWS, config, metrics

LN2 = log(2)
HALF = 0.5 + LN2 - 1  # k3 where the other policy gives a token half the probability


def with_predictions(t: Trajectory, steps: list[int], texts: list[list[str]], confidence: list[list[float]]) -> Any:
    """texts: of each rollout the predictions at the steps. confidence: of each rollout, of all its positions."""
    t.predicted_at = torch.tensor([steps] * len(t))
    t.predicted_tokens = torch.tensor([[[LETTERS.index(x) for x in text] for text in row] for row in texts])
    t.predicted_confidence = torch.tensor(confidence, dtype=torch.float64)[:, None].expand(-1, len(steps), -1)
    return t


def test_mdpo_by_hand():
    """At temperature 1/2 odds are squared. The first rollout has no advantage in its second state."""
    t = rollouts(["abe", "bee"], ["011", "100"], temperature=0.5)
    with_predictions(t, [0, 1], [["bbe", "abe"], ["bee", "bee"]], [[0.5, 1, 0.25], [1, 0.5, 0.75]])
    signal = torch.tensor([[1.0, 0.0], [-0.5, 2.0]], dtype=torch.float64)
    objective = MDPO(epsilon=0.2, beta=0.1)
    views = objective.views(t, signal, [0, 1], 0)
    old = {"___": "111 112 121", "_ee": "112 111 111"}
    current = {"___": "111 121 112", "_ee": "211 111 111"}
    loss = loss_of(objective, views, signal, current=current, old=old, base=old)
    k2 = log(4) ** 2 / 2
    first = (-0.5 * 1 - 1 * 1.2 - 0.25 * 1.2) * 3 / 3.0001 + 0.1 * 1.25 * k2  # ratios 1, 4, 4
    second = (1 * 0.5 + 0.5 * 0.4 + 0.75 * 2) * 3 / 3.0001 + 0.1 * 1.25 * k2  # ratios 1, 1/4, 4
    alone = -2 * 1 * 3 / 1.0001  # one mask, ratio 1
    assert loss == pytest.approx(((first + second) / 6 + alone) / 2, rel=1e-6)


def test_mdpo_takes_no_state_after_a_rollout_s_end():
    t = rollouts(["ab", "ab"], ["00", "01"])
    with_predictions(t, [0, 1], [["ab", "ab"]] * 2, [[0.5, 0.5]] * 2)
    views = MDPO().views(t, torch.ones(2, 2), [0, 1], 0)
    assert sorted(zip(views.row.tolist(), views.state.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]


def test_mdpo_advantages_by_hand_and_the_steps_that_train():
    rewards = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    # u: R_0 + 1 + mean of the later; R_1 - R_0 + 1 + R_2; R_2 - R_1 + 1 + R_2.
    # First prompt: [2, 3, 2] and [2, 0, 1]; second: twice the same.
    found = MDPO(steps=9).signal(rewards, group)
    one, other = 1.5 / (4.5**0.5 + 1e-4), 0.5 / (0.5**0.5 + 1e-4)
    expected = torch.tensor([[0, one, other], [0, -one, -other], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    expected[:, 2] = 0  # the smaller sum of |A|
    torch.testing.assert_close(MDPO(steps=1).signal(rewards, group), expected)


TREE = {"current": {"___": "211 112 111", "a__": "111 121 112", "_e_": "211 111 111"}}
TREE_OLD = {"___": "112 121 111", "a__": "111 112 112", "_e_": "112 111 111"}


def grown(steps: int) -> Trajectory:
    """The first edges reveal a, or an e in the middle; the second the rest. What follows the e is not scored."""
    reveal = {2: ["011", "011", "101", "101"], 4: ["123", "032", "212", "303"]}[steps]
    t = rollouts(["abe", "aae", "bee", "aeb"], reveal, steps=steps)
    t.node = nodes(4, (2, 2))
    return t


@pytest.mark.parametrize("steps", [2, 4])
def test_dtree_rpo_by_hand(steps: int):
    objective = DTreeRPO(epsilon=0.5, beta=0.1, lambda_max=0.3, growth=2.0, progress=0.5)
    values = node_values(torch.tensor([1.0, 0.5, 0.0, 0.5], dtype=torch.float64), (2, 2))
    signal = objective.signal(values, torch.zeros(4, dtype=torch.long))
    assert signal.tolist() == [[0.25, 0.25], [0.25, -0.25], [-0.25, -0.25], [-0.25, 0.25]]
    views = objective.views(grown(steps), signal, [0, 1, 2, 3], 0)
    loss = loss_of(objective, views, signal, **TREE, old=TREE_OLD, base=TREE_OLD)
    # Edges: a (ratio 2), e (2); b e (2, 1), a e (1, 1); b (1), a (2).
    ratios = -0.25 * 1.5 + 0.25 * 2 + (-0.25 * 1.5 - 0.25) / 2 + 0.25 + 0.25 - 0.25 * 1.5
    kl = HALF + HALF + HALF / 2 + HALF
    distil = LN2  # of the good edges' four tokens, each of probability 1/2 and alone at its position
    weight = 0.3 / (math.e + 1)
    assert loss == pytest.approx(ratios / 6 + 0.1 * kl / 6 + weight * distil, rel=1e-6)


def test_each_parent_is_a_unit_of_its_own():
    views = DTreeRPO().views(grown(2), torch.zeros(4, 2, dtype=torch.float64), [0, 1, 2, 3], 0)
    level, unit = views.state.tolist(), views.unit.tolist()
    of_level = [[u for u, at in zip(unit, level, strict=True) if at == wanted] for wanted in (0, 1)]
    assert [len(units) for units in of_level] == [2, 4]  # edges: two of the root, two of each of its children
    assert len(set(of_level[0])) == 1 and len(set(of_level[1])) == 2
    assert not set(of_level[0]) & set(of_level[1])


def test_edges_that_reveal_nothing_to_score_count_in_the_mean():
    t = rollouts(["aeb", "aea"], ["001", "001"], steps=2)  # the e comes at the first step
    t.node = nodes(2, (1, 2))
    signal = torch.tensor([[0.5, 0.5], [0.5, -0.5]], dtype=torch.float64)
    objective = DTreeRPO(beta=0.0, lambda_max=0.0)
    views = objective.views(t, signal, [0, 1], 0)
    assert views.target.sum(-1).tolist() == [2, 0, 0]
    odds = {"___": "111 111 111"}
    assert loss_of(objective, views, signal, current=odds, old=odds) == pytest.approx(-0.5 / 3)


def test_distillation_of_a_single_position_by_hand():
    t = rollouts(["a", "b"], ["0", "0"], steps=1)
    t.node = nodes(2, (2,))
    signal, odds = torch.tensor([[0.5], [-0.5]], dtype=torch.float64), {"_": "211"}
    objective = DTreeRPO(beta=0.0, lambda_max=0.3, progress=1.0)
    loss = loss_of(objective, objective.views(t, signal, [0, 1], 0), signal, current=odds, old=odds)
    assert loss == pytest.approx(0.3 * LN2)  # the ratios are 1 and their advantages cancel


def test_siblings_are_distilled_by_their_advantages():
    """Both good, weights 3/4 and 1/4: q is (3/4 a, 1/4 b) at the first position, b alone at the second."""
    t = rollouts(["ab", "bb", "ba"], ["00", "01", "00"], steps=2)
    t.node = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 2, 2]])
    signal = torch.tensor([[0.1 + log(3), 0.0], [0.1, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    knobs: dict[str, Any] = {"epsilon": 0.2, "beta": 0.0, "tau_max": 1.0, "decay": 0.0, "progress": 1.0}
    current = {"__": "112 121", "ab": "111 111", "b_": "111 111", "ba": "111 111"}
    losses = []
    for strength in (0.0, 0.5):
        objective = DTreeRPO(lambda_max=strength, **knobs)
        views = objective.views(t, signal, [0, 1, 2], 0)
        losses.append(loss_of(objective, views, signal, current=current, old=current))
    kl = 0.75 * log(0.75 / 0.25) + 0.25 * log(0.25 / 0.25)
    assert losses[1] - losses[0] == pytest.approx(0.5 * (kl + LN2) / 2, rel=1e-6)


def test_the_schedule_of_distillation():
    start, end = (DTreeRPO(lambda_max=0.2).at_progress(u) for u in (0.0, 1.0))
    assert start.strength == 0 and end.strength == pytest.approx(0.2)
    assert DTreeRPO(progress=0.3).at_progress(0.9).progress == 0.3


def test_predictions_are_rewarded_by_the_same_functions_and_their_cost_is_logged(llada: Path, tmp_path: Path):
    calls: list[tuple[list[str], list[str], list[list[int]]]] = []

    def length(prompts: Any, completions: Any, completion_ids: Any, want: Any) -> list[float]:
        calls.append((list(completions), list(want), completion_ids))
        return [float(len(ids)) + len(text) for ids, text in zip(completion_ids, completions, strict=True)]

    args = config(tmp_path, objective={"name": "mdpo", "rewarded_steps": 2}, max_steps=1)
    trainer = LFPOTrainer(str(llada), length, args=args, train_dataset=ROWS)
    calls.clear()  # those on stand-in completions
    batch = trainer.sample_and_score(0)
    t, (whole, predicted) = batch.trajectory, calls
    assert t.predicted_at is not None and t.predicted_tokens is not None and batch.predicted_reward_BM is not None
    assert t.predicted_at[0].tolist() == [1, 3] and trainer.keep_steps == [1, 3]
    distinct = {(b, tuple(ids)) for b, row in enumerate(t.predicted_tokens.tolist()) for ids in row}
    assert len(predicted[0]) == len(distinct) == batch.metrics["predictions/scored"] > len(whole[0])
    assert torch.equal(batch.predicted_reward_BM[:, 1], batch.reward_B)  # the last step predicts what it reveals
    for b, row in enumerate(t.predicted_tokens.tolist()):
        ids = row[0][: row[0].index(t.eos_id) + 1] if t.eos_id in row[0] else row[0]
        text = trainer.tokenizer.decode([i for i in ids if i != t.eos_id], skip_special_tokens=True)
        assert float(batch.predicted_reward_BM[b, 0]) == len(ids) + len(text)
    trainer.train()
    line = metrics(tmp_path / "run")[-1]
    assert line["time/reward_predictions"] > 0 and line["predictions/scored"] > 8


def test_a_tree_s_rollouts_stay_in_one_block(llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[list[int]]] = []
    views = DTreeRPO.views

    def recorded(self: Any, trajectory: Trajectory, *rest: Any) -> Any:
        assert trajectory.node is not None
        seen.append(trajectory.node.tolist())
        return views(self, trajectory, *rest)

    monkeypatch.setattr(DTreeRPO, "views", recorded)
    settings: dict[str, Any] = {"objective": {"name": "dtree_rpo", "num_iterations": 1}, "tree": [2, 2]}
    trainer = LFPOTrainer(
        str(llada), lambda prompts, completions, **_: [float(len(c)) for c in completions],
        args=config(tmp_path, max_steps=1, **settings), train_dataset=ROWS,
    )  # fmt: skip
    trainer.train()
    assert sorted(block[0][0] for block in seen) == [0, 4]
    for block in seen:
        assert [node[0] for node in block] == [block[0][0]] * 4


@pytest.mark.parametrize(
    ("objective", "tree", "sampler", "said"),
    [
        (MDPO(), [], {"threshold": 0.9}, "MDPO needs whole predictions at scheduled steps"),
        (MDPO(), [], {"block_length": 4, "cache": "dual"}, "MDPO needs whole predictions .* no sampler.cache"),
        (MDPO(), [2, 2], {}, "MDPO needs whole predictions"),
        (MDPO(), [], {"temperature": 0.0}, "mdpo needs sampler.temperature above 0"),
        (DTreeRPO(), [], {}, r"DTreeRPO needs rollouts that branch \(tree: \[4, 4\]"),
        (DTreeRPO(), [2, 2, 2], {}, "3 levels, which do not divide the sampler's 8 steps"),
    ],
)
def test_a_sampler_that_gives_too_little_is_one_sentence(objective: Any, tree: Any, sampler: Any, said: str):
    given = SamplerConfig(**{"gen_length": 8, "temperature": 1.0, **sampler}).for_length(8)
    with pytest.raises(UserError, match=said) as caught:
        check_rollouts(objective, given, tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tree": [2, 3]}, "'tree' .* has 6 leaves; set 'num_generations' to that, found 4"),
        ({"tree": [4, 0]}, "has 0 leaves"),
        ({"tree": [2, 2], "optimizer_steps_per_iteration": 3}, "larger than the 2 prompts_per_iteration"),
    ],
)
def test_trees_that_do_not_fit_the_batch(changes: dict[str, Any], said: str, tmp_path: Path):
    with pytest.raises(ValueError, match=said):
        config(tmp_path, **changes)
