"""MDPO, whose signal has a number for each of several states: losses by hand, states, checks, and the predictions that
a rollout keeps for it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from letter_runs import ROWS, config, metrics
from letters import rollouts
from lfpo.config.sampler import SamplerConfig
from lfpo.contrib.kept import KeepPredictions, KeptTrajectory, kept
from lfpo.contrib.mdpo import MDPO
from lfpo.core.observer import Observer
from lfpo.models import load_model
from lfpo.rollout.sampling import rollout
from lfpo.train.rl import LFPOTrainer


def test_mdpo_takes_no_state_after_a_rollout_s_end():
    t = rollouts(["ab", "ab"], ["00", "01"])
    half = torch.full((2, 2, 2), 0.5, dtype=torch.float64)
    known = kept(t, torch.tensor([[0, 1]] * 2), t.tokens[:, None].expand(-1, 2, -1), half)
    views = MDPO().views(dataclasses.replace(known, advantage=torch.ones(2, 2)), torch.ones(2), [0, 1], 0)
    assert sorted(zip(views.row.tolist(), views.state.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]


def test_mdpo_advantages_by_hand_and_the_steps_that_train():
    rewards = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    # u: R_0 + 1 + mean of the later; R_1 - R_0 + 1 + R_2; R_2 - R_1 + 1 + R_2.
    # First prompt: [2, 3, 2] and [2, 0, 1]; second: twice the same.
    found = MDPO(steps=9).step_advantages(rewards, group)
    one, other = 1.5 / (4.5**0.5 + 1e-4), 0.5 / (0.5**0.5 + 1e-4)
    expected = torch.tensor([[0, one, other], [0, -one, -other], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    expected[:, 2] = 0  # the smaller sum of |A|
    torch.testing.assert_close(MDPO(steps=1).step_advantages(rewards, group), expected)


def test_predictions_are_rewarded_by_the_same_functions_and_their_cost_is_logged(llada: Path, tmp_path: Path):
    calls: list[tuple[list[str], list[str], list[list[int]]]] = []

    def length(prompts: Any, completions: Any, completion_ids: Any, want: Any) -> list[float]:
        calls.append((list(completions), list(want), completion_ids))
        return [float(len(ids)) + len(text) for ids, text in zip(completion_ids, completions, strict=True)]

    args = config(tmp_path, objective={"name": "mdpo", "rewarded_steps": 2}, max_steps=1)
    trainer = LFPOTrainer(str(llada), length, args=args, train_dataset=ROWS)
    calls.clear()  # those on stand-in completions
    batch = trainer.algorithm.sample_and_score(0, Observer())
    t, (whole, predicted) = batch.trajectory, calls
    assert isinstance(t, KeptTrajectory)
    assert t.predicted_at[0].tolist() == [1, 3]
    distinct = {(b, tuple(ids)) for b, row in enumerate(t.predicted_tokens.tolist()) for ids in row}
    assert len(predicted[0]) == len(distinct) == batch.metrics["predictions/scored"] > len(whole[0])
    reward = torch.zeros(len(t), 2, dtype=torch.float64)
    reward[:, 1] = batch.reward_R  # the last step predicts what it reveals
    for b, row in enumerate(t.predicted_tokens.tolist()):
        ids = row[0][: row[0].index(t.eos_id) + 1] if t.eos_id in row[0] else row[0]
        text = trainer.tokenizer.decode([i for i in ids if i != t.eos_id], skip_special_tokens=True)
        reward[b, 0] = len(ids) + len(text)
    assert torch.equal(t.advantage, MDPO(rewarded_steps=2).step_advantages(reward, batch.group_R))
    trainer.train()
    line = metrics(tmp_path / "run")[-1]
    assert line["time/reward_predictions"] > 0 and line["predictions/scored"] > 8


PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46]]


@pytest.mark.parametrize(("steps", "block"), [(8, 8), (8, 4), (24, 4), (4, 8)])
def test_kept_predictions_are_the_best_tokens_at_every_mask_of_the_state(checkpoint: Path, steps: int, block: int):
    """Greedy, so each is what a forward on the replayed state says, also after the active block and at idle steps."""
    model, sampler = load_model(checkpoint, dtype=torch.float64), SamplerConfig(8, block_length=block, steps=steps)
    model.backbone.lm_head.weight.data *= 4  # sharper, so that no two predictions are level
    keep = MDPO(rewarded_steps=6).kept_steps(sampler.for_length(8))
    plain, t = (rollout(model, PROMPTS, sampler, [1, 2, 3], variant=x) for x in (None, KeepPredictions(keep)))
    for name in ("tokens", "reveal_step", "confidence", "scheduled_steps", "nfe", "queries"):
        assert torch.equal(getattr(plain, name), getattr(t, name))
    assert isinstance(t, KeptTrajectory) and not isinstance(plain, KeptTrajectory)
    assert t.predicted_at.tolist() == [list(keep)] * 3 and keep[-1] == steps - 1
    for m, step in enumerate(keep):
        masked = t.masked_before(torch.full((3,), step))
        shown = t.tokens.masked_fill(masked, t.mask_id)
        logits = model.head(
            model.hidden(torch.cat([t.prompt_ids, shown], 1), torch.cat([t.prompt_mask, torch.ones_like(shown)], 1))
        )[:, -8:]
        p, best = logits.softmax(-1), logits.clone()
        best[..., t.mask_id] = -torch.inf
        token = torch.where(masked, best.argmax(-1), t.tokens)
        made = t.reveal_step.amax(-1) >= step
        assert torch.equal(t.predicted_tokens[:, m][made], token[made])
        expected = (p.gather(-1, token[..., None]).squeeze(-1) * masked)[made].float()
        torch.testing.assert_close(t.predicted_confidence[:, m][made], expected)
        assert torch.equal(t.predicted_tokens[:, m][~made], t.tokens[~made])
        assert not t.predicted_confidence[:, m][~made].any()


def test_drawn_predictions_hold_what_the_step_reveals(llada: Path):
    model, sampler = load_model(llada), SamplerConfig(gen_length=8, steps=4, temperature=1.0)
    t = rollout(model, PROMPTS, sampler, [1, 2, 3], variant=KeepPredictions((0, 1, 2, 3)), rollout_tokens=1)
    assert isinstance(t, KeptTrajectory)
    for step in range(4):
        now = t.reveal_step <= step
        assert torch.equal(t.predicted_tokens[:, step][now], t.tokens[now])
    assert torch.equal(t.predicted_tokens[:, 3], t.tokens) and not torch.equal(t.predicted_tokens[:, 0], t.tokens)


def test_steps_to_keep_are_even_and_end_with_the_last():
    sampler = SamplerConfig(gen_length=8, steps=8)
    assert [MDPO(rewarded_steps=n).kept_steps(sampler) for n in (1, 3, 4)] == [(7,), (1, 4, 7), (1, 3, 5, 7)]
    assert MDPO().kept_steps(sampler) == MDPO(rewarded_steps=99).kept_steps(sampler) == tuple(range(8))
