"""What a rollout gives on request: whole predictions of intermediate steps, and branches."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.base.errors import UserError
from lfpo.models import load_model
from lfpo.objectives.objective import evenly_spaced_steps
from lfpo.rollout.denoise import rollout
from lfpo.rollout.sampler import SamplerConfig

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
