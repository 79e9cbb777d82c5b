"""What a rollout gives on request: whole predictions of intermediate steps, and branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.base.errors import UserError
from lfpo.models import load_model
from lfpo.rollout.denoise import rollout
from lfpo.rollout.kept import evenly_spaced_steps
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.tree import check_tree, node_values, tree_rollout

PROMPTS = [[5, 6, 7, 8], [9, 10], [40, 41, 42, 43, 44, 45, 46]]


def sharp(checkpoint: Path) -> Any:
    model = load_model(checkpoint, dtype=torch.float64)
    model.backbone.lm_head.weight.data *= 4
    return model


@pytest.mark.parametrize(("steps", "block"), [(8, 8), (8, 4), (24, 4), (4, 8)])
def test_kept_predictions_are_the_best_tokens_at_every_mask_of_the_state(checkpoint: Path, steps: int, block: int):
    """Greedy, so each is what a forward on the replayed state says, also after the active block and at idle steps."""
    model, sampler = sharp(checkpoint), SamplerConfig(gen_length=8, block_length=block, steps=steps)
    keep = evenly_spaced_steps(sampler.for_length(8), 6)
    plain, t = rollout(model, PROMPTS, sampler, [1, 2, 3]), rollout(model, PROMPTS, sampler, [1, 2, 3], keep_steps=keep)
    for name in ("tokens", "reveal_step", "confidence", "scheduled_steps", "nfe", "queries"):
        assert torch.equal(getattr(plain, name), getattr(t, name))
    assert plain.predicted_tokens is None
    assert t.predicted_at is not None and t.predicted_tokens is not None and t.predicted_confidence is not None
    assert t.predicted_at.tolist() == [keep] * 3 and keep[-1] == steps - 1
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
    t = rollout(model, PROMPTS, sampler, [1, 2, 3], keep_steps=range(4), rollout_tokens=1)
    assert t.predicted_tokens is not None
    for step in range(4):
        now = t.reveal_step <= step
        assert torch.equal(t.predicted_tokens[:, step][now], t.tokens[now])
    assert torch.equal(t.predicted_tokens[:, 3], t.tokens) and not torch.equal(t.predicted_tokens[:, 0], t.tokens)


def test_steps_to_keep_are_even_and_end_with_the_last():
    sampler = SamplerConfig(gen_length=8, steps=8)
    assert [evenly_spaced_steps(sampler, n) for n in (1, 3, 4)] == [[7], [1, 4, 7], [1, 3, 5, 7]]
    assert evenly_spaced_steps(sampler, None) == evenly_spaced_steps(sampler, 99) == list(range(8))


def test_predictions_are_not_kept_with_a_cache(llada: Path):
    sampler = SamplerConfig(gen_length=8, block_length=4, cache="dual")
    with pytest.raises(UserError, match="whole predictions cannot be kept with sampler cache 'dual'"):
        rollout(load_model(llada), PROMPTS, sampler, [1, 2, 3], keep_steps=[0])


@pytest.mark.parametrize(
    "settings", [{}, {"block_length": 2, "early_stop": "eos"}, {"block_length": 4, "cache": "dual"}]
)
def test_leaves_share_what_their_node_says_and_no_more(checkpoint: Path, settings: dict[str, Any]):
    model = load_model(checkpoint)
    sampler = SamplerConfig(gen_length=8, steps=8, temperature=1.0, **settings).for_length(8)
    prompts, seeds = [p for p in PROMPTS for _ in range(6)], list(range(100, 118))
    t = tree_rollout(model, prompts, sampler, seeds, [2, 3])
    assert t.node is not None
    assert t.node[6:12].tolist() == [[6, 6, 6], [6, 6, 7], [6, 6, 8], [6, 9, 9], [6, 9, 10], [6, 9, 11]]
    states = t.state_before(torch.full((18,), 4))
    for first in range(0, 18, 3):
        assert bool((states[first : first + 3] == states[first]).all())
        assert len({tuple(row) for row in t.tokens[first : first + 3].tolist()}) == 3
    assert len({tuple(row) for row in states.tolist()}) == 6
    if not settings.get("cache"):  # a cache is renewed where a level starts
        whole = rollout(model, prompts[::6], sampler, seeds[::6])
        for name in ("prompt_ids", "tokens", "reveal_step", "entropy", "scheduled_steps", "nfe", "queries"):
            torch.testing.assert_close(getattr(t, name)[::6], getattr(whole, name))


def test_shared_forwards_of_a_tree_run_once(llada: Path, monkeypatch: pytest.MonkeyPatch):
    model, sampler = load_model(llada), SamplerConfig(gen_length=4, steps=4, temperature=1.0).for_length(4)
    rows, hidden = [], model.hidden

    def counted(ids: torch.Tensor, mask: Any, **how: Any) -> torch.Tensor:
        rows.append(len(ids))
        return hidden(ids, mask, **how)

    monkeypatch.setattr(model, "hidden", counted)
    tree_rollout(model, [PROMPTS[0]] * 6, sampler, list(range(6)), [2, 3])
    assert rows == [1, 2, 2, 6]  # siblings also share their first forward


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
        check_tree(tree, sampler)
    assert "\n" not in str(caught.value)
    check_tree([2, 2], SamplerConfig(gen_length=8, steps=8).for_length(8))


def test_values_of_nodes_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0, 1.0])
    roots, inner = torch.tensor([0.375, 0.5]).repeat_interleave(4), torch.tensor([0.5, 0.25, 0, 1]).repeat_interleave(2)
    assert node_values(rewards, [2, 2]).tolist() == torch.stack([roots, inner, rewards], 1).tolist()
    assert node_values(rewards, [4]).tolist() == torch.stack([roots, rewards], 1).tolist()
