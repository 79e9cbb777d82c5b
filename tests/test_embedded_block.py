"""The shipped block-diffusion model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lfpo.base.config import load_yaml
from lfpo.base.files import read_json
from lfpo.cli.command_line import main
from lfpo.eval.evaluate import evaluate
from lfpo.models import load_model, load_tokenizer
from lfpo.models.loading import EMBEDDED, SHIPPED
from lfpo.models.structure import Structure
from lfpo.prompts.tasks import get_task
from lfpo.rollout.engine import as_it_is
from lfpo.rollout.sampler import SamplerConfig
from test_distributed import metrics
from tiny import random_ids

FOLDER = SHIPPED["embedded-block"]


def test_it_is_the_embedded_model_with_the_blocks_that_its_recipe_says():
    recipe = load_yaml("embedded-block")
    assert read_json(FOLDER / "config.json") == {**read_json(EMBEDDED / "config.json"), "block_length": 8}
    assert recipe["model"] == "embedded" and recipe["block_length"] == 8
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (FOLDER / name).read_bytes() == (EMBEDDED / name).read_bytes()
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) < 4e6


@pytest.mark.parametrize("name", ["sudoku", pytest.param("choice", marks=pytest.mark.long)])
def test_it_is_flawed_but_not_hopeless(name: str):
    task, model = get_task(name), load_model("embedded-block")
    rows = [task.row("test", i) for i in range(40)]
    sampler = SamplerConfig(temperature=1.0).for_length(task.gen_length, model.block_length)
    result = evaluate(as_it_is(model), model, load_tokenizer("embedded-block"), rows, task.correct_all, sampler)
    assert result.accuracy is not None and 0.05 < result.accuracy < 0.85


@torch.no_grad()
def test_plain_transformers_loads_its_export_with_the_callers_mask(tmp_path: Path):
    assert main(["export", "embedded-block", "--layout", "transformers", "--output", str(tmp_path / "out")]) == 0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    model, ids = load_model("embedded-block"), random_ids(2, 20)
    block = torch.arange(20) // theirs.config.block_length
    seen = (block[:, None] >= block).expand(2, 1, -1, -1)
    ours = model.head(model.hidden(ids, structure=Structure(8)))
    torch.testing.assert_close(theirs(ids, seen).logits, ours, rtol=0, atol=1e-4)
    assert (theirs(ids).logits - ours).abs().max() > 1e-2  # without it, attention is full


@pytest.mark.long
def test_a_run_of_the_demo_recipe(tmp_path: Path):
    folder = tmp_path / "run"
    given = ["--model", "embedded-block", "--max_steps", "1", "--eval_size", "4", "--output_dir", str(folder)]
    assert main(["train", "demo", *given]) == 0
    assert metrics(folder)[-1]["grad_norm"] > 0
