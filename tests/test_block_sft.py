"""Supervised training of models that attend block by block."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.base.errors import UserError
from lfpo.base.rng import generator
from lfpo.models import MaskedDiffusionLM, load_model
from lfpo.models.structure import Structure
from lfpo.objectives.vrpo import VRPO
from lfpo.train.dpo import as_trajectory
from lfpo.train.example_configs import SFTConfig
from lfpo.train.sft import MIN_T, accumulate_sft_gradients, sampled_length, train_sft
from test_sft import config as without_blocks
from test_sft import examples, interrupted, metrics, quiet
from tiny import LLADA_CONFIG, write_dream, write_llada

BLOCK, EOS = 4, int(LLADA_CONFIG["eos_token_id"])
RATIOS = {"1/t": (0.0, 1.0), "equal": (0.3, 0.8)}


@pytest.fixture
def model(tmp_path: Path) -> MaskedDiffusionLM:
    return load_model(write_llada(tmp_path / "blocks", block_length=BLOCK), dtype=torch.float64)


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        (3, [1, 2, EOS, EOS, EOS, EOS, EOS, EOS], [1, 2, EOS, EOS, EOS]),  # cut after the block with the first EOS
        (4, [1, 2, 3, EOS, EOS, EOS, EOS, EOS], [1, 2, 3, EOS]),
        (2, [1, 2, 3, 4, 5, 6, 7, EOS], [1, 2, 3, 4, 5, 6, 7, EOS, EOS, EOS]),
        (3, [1, 2, 3, 4], [1, 2, 3, 4, EOS]),  # no room for an EOS in gen_length: the block is filled up
    ],
)
def test_a_completion_ends_with_a_whole_block(
    prompt: int, completion: list[int], expected: list[int], model: MaskedDiffusionLM, llada: Path
):
    assert sampled_length([9] * prompt, completion, model) == len(expected)
    assert sampled_length([9] * prompt, completion, load_model(llada)) == len(completion)


@torch.no_grad()
@pytest.mark.parametrize("loss_weight", ["1/t", "equal"])
def test_the_loss_is_that_of_each_block_alone_after_its_clean_prefix(loss_weight: Any, model: MaskedDiffusionLM):
    n, (low, high) = 5, RATIOS[loss_weight]
    batch = examples([(3, 5), (4, 8), (1, 7), (6, 6), (9, 7)])
    rng = generator(2, "t")
    t_B = (torch.arange(n) + torch.rand((), generator=rng)) / n
    t = (low + (high - low) * t_B).clamp(min=MIN_T)[torch.randperm(n, generator=rng)].tolist()
    root = int(torch.randint(2**62, (), generator=rng))
    expected = 0.0
    for i, example in enumerate(batch):
        prompt, size = len(example.prompt), len(example.completion)
        masked = torch.rand(size, generator=generator(root, i)) < t[i]
        clean = torch.tensor(example.prompt + example.completion)
        noised = clean.masked_fill(torch.cat([torch.zeros(prompt, dtype=torch.bool), masked]), model.mask_id)
        total: float = 0.0
        for start in range(prompt // BLOCK * BLOCK, len(clean), BLOCK):
            ids = torch.cat([clean[:start], noised[start : start + BLOCK]])
            log_p = model.head(model.hidden(ids[None], structure=Structure(BLOCK)))[0].log_softmax(-1)
            for place in range(max(start, prompt), len(ids)):
                if masked[place - prompt]:
                    total -= float(log_p[place, clean[place]])
        share = t[i] * size if loss_weight == "1/t" else max(1.0, float(masked.sum()))
        expected += total / (share * n)
    with torch.enable_grad():
        loss = accumulate_sft_gradients(
            model, dict(enumerate(batch)), n, 60, generator(2, "t"), ratios=(low, high), loss_weight=loss_weight
        )
    assert loss == pytest.approx(expected, rel=1e-6)  # weights are float32


def config(folder: Path, **changes: Any) -> SFTConfig:
    return without_blocks(folder, **{"block_length": 8, "steps": 40, **changes})


def test_loss_decreases_and_the_saved_model_attends_by_blocks(tmp_path: Path):
    folder = train_sft(config(tmp_path / "run"), report=quiet)
    losses = [row["loss"] for row in metrics(tmp_path / "run")]
    assert losses[-1] < 0.7 * losses[0]
    assert load_model(folder).block_length == 8
    assert json.loads((folder / "config.json").read_text())["block_length"] == 8


def test_a_model_with_full_attention_becomes_a_block_model(tmp_path: Path, llada: Path):
    few = {"steps": 1, "model": str(llada), "init": None}
    assert load_model(train_sft(config(tmp_path / "run", **few), report=quiet)).block_length == 8
    dream = {**few, "model": str(write_dream(tmp_path / "dream"))}
    with pytest.raises(UserError, match=r"block_length 8.*dream"):
        train_sft(config(tmp_path / "refused", **dream), report=quiet)


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path):
    settings = {"steps": 6, "save_steps": 3, "logging_steps": 3, "loss_weight": "equal", "mask_ratios": [0.3, 0.8]}
    whole = train_sft(config(tmp_path / "whole", **settings), report=quiet)
    broken = config(tmp_path / "broken", **settings)
    interrupted(broken, at=3)
    resumed = train_sft(broken, resume=True, report=quiet)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (whole, resumed)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"block_length": 0}, "block_length 0"),
        ({"mask_ratios": [0.8, 0.3]}, "mask_ratios"),
        ({"mask_ratios": [0.5]}, "mask_ratios"),
        ({"loss_weight": "half"}, "loss_weight"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any], part: str):
    with pytest.raises((ValueError, UserError), match=part):
        config(tmp_path / "run", **changes)


def test_a_pair_ends_as_rollouts_would(model: MaskedDiffusionLM):
    """Three prompt tokens, blocks of four: the answer with EOS at its third token ends with its fifth."""
    pair = ([9, 9, 9], [1, 2, EOS, EOS, EOS, EOS], [1, 2, 3, 4, 5, 6])
    t = as_trajectory([pair], model)
    assert t.structure == Structure(BLOCK)
    assert t.tokens.shape == (2, 6 + BLOCK - 1) and t.tokens[:, 6:].unique().tolist() == [EOS]
    assert (t.reveal_step >= 0).sum(-1).tolist() == [5, 9]  # to the ends of the blocks
    assert t.lengths.tolist() == [3, 7]  # the second one's EOS comes after it
    views = VRPO(mc_samples=2).views(t, torch.zeros(2), [1, 2], 0)
    assert views.structure == Structure(BLOCK, doubled=True)
    assert not views.target[:, 3:][~t.counted[views.row]].any()
