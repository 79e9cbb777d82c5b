"""Checkpoints in the published layouts of block-diffusion models and mixtures of experts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from golden_families import golden, golden_io
from lfpo.base.errors import UserError
from lfpo.eval.likelihood import Pair, likelihood_bounds
from lfpo.eval.settings import LikelihoodConfig
from lfpo.models import load_model, load_tokenizer, save_model
from lfpo.rollout.denoise import rollout
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.config import LFPOConfig
from lfpo.train.rl import LFPOTrainer
from lfpo.train.sft import train_sft
from lfpo.train.sft_config import SFTConfig
from tiny import read_weights, write_llada

FAMILIES = ["llada", "sdar"]
BLOCKS = {"llada": None, "sdar": 4}


def fails(call: Callable[[], object], *names: str) -> None:
    """The call raises a one-line UserError that contains every name."""
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for name in names:
        assert name in text, text


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_published_code(name: str, tmp_path: Path) -> None:
    model, io = load_model(golden(name, tmp_path / name)), golden_io(name)
    torch.testing.assert_close(model(io["full.ids"]), io["full.logits"], rtol=0, atol=1e-4)
    assert io["full.logits"].abs().max() > 10


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_saving_gives_the_same_tensors_under_the_same_keys(name: str, tmp_path: Path) -> None:
    source = golden(name, tmp_path / name)
    save_model(load_model(source), tmp_path / "saved")
    before, after = read_weights(source), read_weights(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_blocks(name: str, tmp_path: Path) -> None:
    source = golden(name, tmp_path / name)
    model, tokenizer = load_model(source), load_tokenizer(source)
    assert model.block_length == BLOCKS[name]
    assert model.mask_id == tokenizer.mask_token_id
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


def test_a_block_length_in_config_json(tmp_path: Path) -> None:
    assert load_model(write_llada(tmp_path / "blocks", block_length=8)).block_length == 8
    assert load_model(golden("sdar", tmp_path / "default", block_size=None)).block_length == 4
    for i, wrong in enumerate((0, "8", True)):
        folder = golden("sdar", tmp_path / str(i), block_size=wrong)
        fails(functools.partial(load_model, folder), "config.json", "block_size", repr(wrong))


def test_block_models_are_not_run_with_full_attention(tmp_path: Path) -> None:
    source = golden("sdar", tmp_path / "sdar")
    model = load_model(source)
    fails(lambda: rollout(model, [[1, 2]], SamplerConfig(gen_length=8), [0]), str(source), "blocks of 4", "sampling")
    fails(lambda: likelihood_bounds(model, [Pair([1], [2], 0)], LikelihoodConfig()), "blocks of 4", "likelihood")
    common: dict[str, Any] = {"model": str(source), "output_dir": str(tmp_path / "run")}
    fails(lambda: LFPOTrainer(args=LFPOConfig(**common, task="choice")), "blocks of 4", "training")
    fails(lambda: train_sft(SFTConfig(**common, tasks={"choice": 1.0}, steps=1)), "blocks of 4", "training")
