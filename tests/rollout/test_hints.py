"""Hints for prompts that no rollout solves: what is shown, which rollouts replace others, what is scored."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.engine import Request
from lfpo.core.observer import Observer
from lfpo.core.views import noised
from lfpo.models import load_model
from lfpo.rollout.hinted import Hinted
from lfpo.rollout.local_engine import run_unit
from lfpo.train.rl import LFPOTrainer

ROWS = [{"prompt": f"{a} + {b} =", "solution": "12345678"} for a, b in ((1, 2), (3, 4), (5, 6))]


def four_right(prompts: Any, completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    """1 with four characters of the solution in their places, which no rollout of the small model has by itself."""
    pairs = [zip(c.ljust(8), s, strict=False) for c, s in zip(completions, solution, strict=True)]
    return [float(sum(x == y for x, y in pair) >= 4) for pair in pairs]


def trainer(folder: Path, rows: list[dict[str, str]] = ROWS, **more: Any) -> LFPOTrainer:
    common = {
        "prompts_per_iteration": 3,
        "num_generations": 4,
        "eval_steps": 0,
        "output_dir": str(folder),
        "threads": 1,
    }
    sampler = {"gen_length": 8, "temperature": 1.0, "threshold": 0.9}
    args = build(LFPOConfig, {**common, "sampler": sampler, **more}, "test")
    return LFPOTrainer("embedded", four_right, args=args, train_dataset=rows)


def test_shown_tokens_stay_and_the_others_are_predicted_beside_them():
    model, sampler = load_model("embedded"), SamplerConfig(gen_length=4, block_length=4, steps=4, temperature=0.0)
    prompts, shown = [[5, 6, 7], [5, 6, 7]], [[11, -1, 13, 14], [21, 22, -1, 24]]
    t = run_unit(model, Request(prompts, [1, 2], sampler, 2, shown=shown), rollout_tokens=64)
    for row, given in enumerate(shown):
        place = given.index(-1)
        ids = torch.tensor([[*prompts[row], *given]])
        ids[0, 3 + place] = model.mask_id
        with torch.no_grad():
            logits = model.head(model.hidden(ids)[0, 3 + place])
        logits[model.mask_id] = -math.inf
        assert t.tokens[row].tolist() == [int(logits.argmax()) if g < 0 else g for g in given]
    assert t.reveal_step.tolist() == [[0] * 4] * 2 and t.nfe.tolist() == [1, 1]
    assert t.confidence[0, [0, 2, 3]].tolist() == [1, 1, 1] and t.entropy[0, [0, 2, 3]].tolist() == [0, 0, 0]


def test_a_block_that_is_shown_as_a_whole_is_passed():
    model, sampler = load_model("embedded"), SamplerConfig(gen_length=4, block_length=2, steps=4, temperature=0.0)
    t = run_unit(model, Request([[5, 6]], [1], sampler, shown=[[11, 12, -1, -1]]), rollout_tokens=64)
    assert t.tokens[0, :2].tolist() == [11, 12] and model.mask_id not in t.tokens


def test_right_hinted_rollouts_replace_some_of_an_unsolved_group(tmp_path: Path):
    hints = {"column": "solution", "share": [0.2, 1.0], "piece": [1, 2], "replaced": 0.5, "scored": 0.3}
    plain, hinted = trainer(tmp_path / "plain"), trainer(tmp_path / "hinted", hints=hints)
    without = plain.algorithm.rollouts.roll(0, Observer())
    assert without.rewards.reward_B.sum() == 0
    found = hinted.algorithm.rollouts.roll(0, Observer())
    new = [b for b in range(12) if found.rewards.reward_B[b] == 1]
    assert len(new) > 0 and all(sum(b // 4 == g for b in new) <= 2 for g in range(3))
    assert found.sums["hints/unsolved"] == (3.0, 3) and found.sums["hints/replaced"] == (float(len(new)), 12)
    assert found.discarded is not None and len(found.discarded) == 12  # of 24 rollouts
    source = hinted.algorithm.rollouts
    assert isinstance(source, Hinted)
    assert found.unscored is not None
    for b in range(12):
        turn, unscored = found.turns[b], found.unscored[b]
        assert turn.rollout == b and four_right([], [turn.text], ["12345678"]) == [found.rewards.reward_B[b]]
        if b not in new:
            assert turn == without.turns[b] and not unscored.any()
            assert torch.equal(found.trajectory.tokens[b], without.trajectory.tokens[b])
            continue
        shown = torch.tensor(source.shown(turn.row, turn.seed))
        given = shown >= 0
        assert torch.equal(found.trajectory.tokens[b][given], shown[given])
        left = given & ~unscored  # the loss scores three tenths of them, rounded up
        assert left.sum() == math.ceil(0.3 * int(given.sum())) and not (unscored & ~given).any()
        # Those with the highest entropy where the whole completion is masked.
        ids = torch.cat([found.trajectory.prompt_ids[b], torch.full((8,), hinted.model.mask_id)])
        mask = torch.cat([found.trajectory.prompt_mask[b], torch.ones(8, dtype=torch.long)])
        with torch.no_grad():
            logits = hinted.reference.head(hinted.reference.hidden(ids[None], mask[None])[0, -8:]).double()
        logits[:, hinted.model.mask_id] = -math.inf
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        assert entropy[left].min() >= entropy[unscored].max() - 1e-6


def test_discarded_rollouts_count_as_computed(tmp_path: Path):
    hints = {"column": "solution", "share": [0.0, 0.0]}  # so none is shown anything, and none is right
    plain, hinted = trainer(tmp_path / "plain"), trainer(tmp_path / "hinted", hints=hints)
    hinted.learner.optimizer = plain.learner.optimizer
    batches = [t.algorithm.sample_and_score(0, Observer()) for t in (plain, hinted)]
    assert batches[1].metrics["hints/unsolved"] == 1 and batches[1].metrics["hints/replaced"] == 0
    assert torch.equal(batches[0].trajectory.tokens, batches[1].trajectory.tokens)
    assert batches[0].discarded is None and batches[1].discarded is not None
    # The same prompts with other seeds.
    assert not torch.equal(batches[1].discarded.tokens, batches[0].trajectory.tokens)


def test_unscored_positions_are_no_targets(tmp_path: Path):
    t = trainer(tmp_path / "run").algorithm.rollouts.roll(0, Observer()).trajectory
    rows, everything = torch.tensor([0, 1]), torch.ones((2, 8), dtype=torch.bool)
    unscored = torch.zeros_like(t.tokens, dtype=torch.bool)
    unscored[1, 2:5] = True
    views = noised(t, rows, everything, everything).without(unscored)
    assert views.target[:, -8:].tolist() == [[True] * 8, [True, True, False, False, False, True, True, True]]
    assert torch.equal(views.weight, views.target.float())


def test_a_run_with_hints_learns_from_unsolved_prompts(tmp_path: Path):
    signal = [
        trainer(tmp_path / name, hints=hints, max_steps=1).run_iteration(0)["frac_signal"]
        for name, hints in (("plain", {}), ("hinted", {"column": "solution", "share": [1.0, 1.0], "piece": [1, 1]}))
    ]
    assert signal[0] == 0 and signal[1] > 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hints": {"column": "solution", "share": [0.6, 0.2]}}, r"share \[0.6, 0.2\] must be \[least, most\]"),
        ({"hints": {"column": "answer"}}, "hints.column: the training rows have no column 'answer'"),
        (
            {"hints": {"column": "solution"}, "environment": "games:Guess", "max_turns": 2},
            "'hints' does not work with 'environment'",
        ),
        ({"hints": {"column": "solution"}, "engine": {"max_staleness": 1}}, "set 'engine.max_staleness' to 0"),
    ],
)
def test_what_does_not_go_with_hints_is_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str):
    with pytest.raises((UserError, ValueError), match=sentence):
        trainer(tmp_path / "run", **changes)
