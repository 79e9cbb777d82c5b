# mypy: disable-error-code="no-untyped-call"
"""The one-page example computes what the trainer computes."""

import re
from pathlib import Path

import lfpo_from_scratch as page
import pytest
import torch

from lfpo import SamplerConfig, load_model, load_tokenizer
from lfpo.core.learner import accumulate_gradients
from lfpo.core.lfpo import LFPO
from lfpo.core.model import CURRENT, OLD
from lfpo.core.views import noised
from lfpo.prompts.tasks import get_task
from lfpo.rollout.sampling import rollout

FORM = LFPO(
    beta=page.BETA,
    states="noised",
    timesteps=1,
    num_iterations=page.PASSES,
    baseline=page.BASELINE,
    deviation="range",
    clip=page.CLIP,
    target_weight="p_old",
)


def test_losses_and_gradients_are_the_trainers_on_the_same_rollouts():
    model, tokenizer, task = load_model("embedded"), load_tokenizer("embedded"), get_task("sudoku")
    reference = model.frozen_copy()
    with torch.no_grad():  # as in a later optimiser step
        for p in model.parameters():
            p.add_(1e-3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    rows = [task.row("train", i) for i in range(2) for _ in range(page.ROLLOUTS)]
    prompts = page.Encoding(tokenizer, model.eos_id)(rows)
    sampler = SamplerConfig(gen_length=16, temperature=1.0, threshold=0.9)
    trajectory = rollout(reference, prompts.tolist(), sampler, list(range(len(rows))))
    reward = (torch.arange(len(rows)) % 3 > 0).double()
    r = FORM.signal(reward, torch.arange(2).repeat_interleave(page.ROLLOUTS))
    torch.testing.assert_close(page.signals(reward), r)

    masked, target = page.random_masks(trajectory.tokens, model.eos_id, torch.Generator().manual_seed(1))
    assert torch.equal(target, masked & trajectory.until_eos)
    ours = page.block_loss(model, reference, prompts, trajectory.tokens, r.float(), masked, target)
    expected = torch.autograd.grad(ours, list(model.parameters()))
    views = noised(trajectory, torch.arange(len(rows)), masked, target)
    loss, _ = accumulate_gradients(FORM, {CURRENT: model, OLD: reference}, views, r, update_tokens=10**6)
    assert loss == pytest.approx(ours.item(), rel=1e-5)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-3, atol=1e-6)


def test_denoising_decodes_what_the_sampler_does():
    """Greedy, where no random numbers are drawn."""
    model, tokenizer, task = load_model("embedded"), load_tokenizer("embedded"), get_task("sudoku")
    prompts = page.Encoding(tokenizer, model.eos_id)([task.row("test", i) for i in range(8)])
    tokens, forwards = page.denoise(model, prompts, 16, temperature=0.0)
    trajectory = rollout(model, prompts.tolist(), SamplerConfig(gen_length=16, threshold=0.9), [0] * 8)
    assert torch.equal(tokens, trajectory.tokens)
    assert forwards.tolist() == trajectory.nfe.tolist()


@pytest.mark.long
def test_it_learns_in_a_few_iterations(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """From half the prompts. Four iterations are too few for this."""
    monkeypatch.setattr(page, "PROMPTS", 8)
    (accuracy, forwards), (trained, fewer) = page.train(seed=0, iterations=5)
    assert trained > accuracy + 0.02
    assert fewer < 0.8 * forwards
    assert "after:" in capsys.readouterr().out


def test_the_method_page_quotes_the_example():
    folder = Path(__file__).parents[2]
    quoted = re.findall(r"```python\n(.*?)```", (folder / "docs" / "method.md").read_text(), re.DOTALL)
    assert len(quoted) >= 3
    for block in quoted:
        assert block in (folder / "examples" / "lfpo_from_scratch.py").read_text()
