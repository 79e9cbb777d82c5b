"""Training where noise is uniform over the vocabulary (DiffusionGemma): supervised, and by rewards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lfpo.config.sft import SFTConfig
from lfpo.core.rng import generator
from lfpo.models import load_model
from lfpo.train.sft import MIN_T, Example, accumulate_sft_gradients, noise_of
from tiny_gemma import CANVAS, CHARACTERS, write_gemma


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma(tmp_path_factory.mktemp("gemma") / "checkpoint", std=0.1)


def gradient_of(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def examples(*sizes: tuple[int, int]) -> list[Example]:
    """Of so many prompt tokens and canvases."""
    rng = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(CHARACTERS, (n,), generator=rng).tolist()  # noqa: E731
    return [(draw(prompt), draw(canvases * CANVAS)) for prompt, canvases in sizes]


# Supervised training


@pytest.mark.parametrize("loss_weight", ["1/t", "equal"])
def test_a_supervised_step_is_the_one_written_by_hand(checkpoint: Path, tmp_path: Path, loss_weight: str):
    """Row by row: uniform tokens in place of some, cross-entropy of all tokens (with `equal` of those alone), half of
    the rows conditioned on a first prediction, the others on nothing. Passes of other sizes change nothing."""
    batch = examples((13, 1), (3, 2), (5, 1), (9, 1), (2, 1))
    settings: dict[str, Any] = {"output_dir": str(tmp_path), "model": str(checkpoint), "tasks": {"choice": 1.0}}
    size = len(batch)
    model = load_model(checkpoint, dtype=torch.float64)
    found = []
    for update_tokens in (10_000, 1):
        config = SFTConfig(**settings, batch_size=size, update_tokens=update_tokens, loss_weight=loss_weight)
        loss = accumulate_sft_gradients(model, config, dict(enumerate(batch)), generator(4, "t"))
        found.append((loss, gradient_of(model)))
        model.zero_grad()
    rng = generator(4, "t")
    t_B = ((torch.arange(size) + torch.rand((), generator=rng)) / size).clamp(min=MIN_T)
    t_B = t_B[torch.randperm(size, generator=rng)]
    root, total, conditioned = int(torch.randint(2**62, (), generator=rng)), torch.zeros(()), []
    for i, (prompt, completion) in enumerate(batch):
        noise, ids = noise_of(model, len(completion), generator(root, i)), torch.tensor([prompt + completion])
        hidden = noise.draw_C < t_B[i]
        noised = torch.where(hidden, noise.token_C, torch.tensor(completion))
        row = torch.cat([ids[:, : len(prompt)], noised[None]], dim=1)
        given: tuple[Any, ...] = (row, ids, torch.ones_like(ids), torch.tensor([len(prompt)]))
        signal = None
        if noise.conditioned:
            with torch.no_grad():
                first, _ = model.noised_hidden(*given, structure=model.training_structure)
                signal = model.conditioning(model.head(first))
        states, _ = model.noised_hidden(*given, structure=model.training_structure, conditioning_BND=signal)
        losses = F.cross_entropy(model.head(states)[0], torch.tensor(completion), reduction="none")
        total = total + (losses.mean() if loss_weight == "1/t" else losses[hidden].sum() / hidden.sum().clamp(min=1))
        conditioned.append(noise.conditioned)
    (total / size).backward()
    assert len(set(conditioned)) == 2
    for loss, gradient in found:
        assert loss == pytest.approx(total.item() / size, rel=1e-7)  # weights are float32
        assert (gradient - gradient_of(model)).norm() < 1e-6 * gradient.norm()
    assert gradient.norm() > 1e-3
