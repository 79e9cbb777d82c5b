"""The embedded models as they are shipped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lfpo.cli.command_line import main
from lfpo.config.build import build, load_yaml
from lfpo.config.files import read_json
from lfpo.config.sampler import SamplerConfig
from lfpo.config.tasks import TASKS
from lfpo.config.train import LFPOConfig
from lfpo.core.structure import Structure
from lfpo.eval.estimates import mean_interval, pass_at_k, wilson_interval
from lfpo.eval.evaluate import evaluate
from lfpo.models import load_model, load_tokenizer
from lfpo.models.loading import EMBEDDED, SHIPPED
from lfpo.prompts.sources import task_judge
from lfpo.prompts.tasks import get_task
from lfpo.rollout.sampling import as_it_is
from lfpo.train.rl import LFPOTrainer
from research.causal_start import write_start
from tiny import random_ids


def test_it_is_small_and_has_the_architecture_its_recipe_says():
    assert sum(f.stat().st_size for f in EMBEDDED.iterdir()) < 8e6
    assert not [f for f in EMBEDDED.iterdir() if f.suffix not in {".json", ".safetensors", ".jinja"}]
    config, init = read_json(EMBEDDED / "config.json"), load_yaml("embedded-pretrain")["init"]
    assert config["model_type"] == "llada"
    assert {k: config[k] for k in init if k != "vocab_size"} == {k: v for k, v in init.items() if k != "vocab_size"}


def test_the_other_is_the_same_with_the_blocks_that_its_recipe_says():
    recipe, folder = load_yaml("embedded-block"), SHIPPED["embedded-block"]
    assert read_json(folder / "config.json") == {**read_json(EMBEDDED / "config.json"), "block_length": 8}
    assert recipe["model"] == "embedded" and recipe["block_length"] == 8
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (EMBEDDED / name).read_bytes()
    assert sum(f.stat().st_size for f in folder.iterdir()) < 4e6


def test_the_third_is_laid_out_as_its_start_and_denoises_blocks_over_a_causal_context(tmp_path: Path):
    write_start(tmp_path)
    folder, start, embedded = SHIPPED["embedded-causal"], load_model(tmp_path), load_model("embedded")
    ids = random_ids(2, 20)
    torch.testing.assert_close(start.hidden(ids), embedded.hidden(ids), rtol=0, atol=1e-4)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert load_model("embedded-causal").structure == Structure(8, causal=True)
    assert sum(f.stat().st_size for f in folder.iterdir()) < 4e6


def test_the_fourth_is_the_one_that_its_recipes_make():
    init, folder = load_yaml("embedded-uniform-pretrain")["init"], SHIPPED["embedded-uniform"]
    config, model = read_json(folder / "config.json"), load_model("embedded-uniform")
    assert load_yaml("sudoku-uniform")["model"] == "embedded-uniform" and model.asks_about_all
    assert config["canvas_length"] == init["canvas_length"] == model.block_length
    sizes = {k: v for k, v in init["text_config"].items() if k not in ("vocab_size", "rope_parameters")}
    assert {k: config["text_config"][k] for k in sizes} == sizes
    assert sum(f.stat().st_size for f in folder.iterdir()) < 4e6


@pytest.mark.long
def test_an_iteration_of_its_recipe_learns_from_shares_of_right_cells(tmp_path: Path):
    small = {"output_dir": str(tmp_path), "prompts_per_iteration": 1, "num_generations": 4, "eval_steps": 0}
    trainer = LFPOTrainer(args=build(LFPOConfig, {**load_yaml("sudoku6"), **small}))
    metrics = trainer.run_iteration(0)
    assert 0.2 < metrics["reward"] < 0.95 and metrics["grad_norm"] > 0
    # Five blocks of eight are run at least twice each: for the first token and for the others.
    assert 10 <= metrics["nfe"] <= 40


@pytest.mark.parametrize("name", list(TASKS))
def test_its_tokenizer_keeps_every_text(name: str):
    tokenizer, task = load_tokenizer("embedded"), get_task(name)
    for i in range(50):
        text = task.row("test", i)["prompt"]
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    odd = "naïve 漢字 <x>\n\t 007 ~ ####"
    assert tokenizer.decode(tokenizer.encode(odd, add_special_tokens=False)) == odd


@pytest.mark.long
@pytest.mark.parametrize(
    ("shipped", "name", "most"),
    [
        *(("embedded", name, 0.75) for name in TASKS),
        *(("embedded-block", name, 0.85) for name in ("sudoku", "choice")),
        *(("embedded-causal", name, 0.85) for name in ("sudoku6", "countdown", "words")),
        ("embedded-uniform", "sudoku", 0.85),
    ],
)
def test_it_is_flawed_but_not_hopeless(shipped: str, name: str, most: float):
    """A small sample of what `lfpo eval` measures: sampled accuracy is neither near 0 nor near 1."""
    task, model, tokenizer = get_task(name), load_model(shipped), load_tokenizer(shipped)
    rows = [task.row("test", i) for i in range(40)]
    remasking: Any = "low_confidence" if model.block_length else "random"
    sampler = SamplerConfig(temperature=1.0, remasking=remasking)
    sampler = SamplerConfig(rule="canvas", max_denoising_steps=12) if model.asks_about_all else sampler
    sampler = sampler.for_length(task.gen_length, model.block_length)
    result = evaluate(as_it_is(model), model, tokenizer, rows, task_judge(task), sampler)
    assert result.mean is not None and result.interval is not None
    assert 0.05 < result.mean < most
    assert result.interval[0] < result.mean < result.interval[1]


def test_evaluation_depends_on_its_seed_only():
    task, model, tokenizer = get_task("countdown"), load_model("embedded"), load_tokenizer("embedded")
    rows = [task.row("test", i) for i in range(6)]
    sampler = SamplerConfig(temperature=1.0).for_length(task.gen_length)
    results = [
        evaluate(as_it_is(model, t), model, tokenizer, rows, task_judge(task), sampler, seed=s).answers
        for s, t in ((1, 10**6), (1, 40), (2, 10**6))
    ]
    assert results[0] == results[1] != results[2]


def test_intervals_and_pass_at_k_by_hand():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(20, 20)[1] == 1.0
    assert pass_at_k(4, 1, 2) == pytest.approx(1 - 3 / 6)
    assert pass_at_k(4, 0, 2) == 0.0
    assert pass_at_k(4, 3, 2) == 1.0
    # Two problems at 1/2 and 1: mean 3/4, standard error 1/4.
    assert mean_interval([1, 2], [2, 2]) == pytest.approx((0.75 - 0.49, 1.0))


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
