"""The model card beside saved weights."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from lfpo import LFPOTrainer
from lfpo.runs.card import model_card, table_cell
from lfpo.runs.directory import Run
from small_runs import choice_config


def test_a_trained_model_and_its_checkpoints_carry_a_card_with_results(tmp_path):
    settings = {"max_steps": 1, "reward_funcs": [], "eval_samplers": {"quick": {"threshold": 0.9}}}
    trainer = LFPOTrainer(args=choice_config(tmp_path / "my run", "embedded", **settings))
    folder = trainer.train()
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "lfpo"
    assert "base_model" not in card.data.to_dict()  # the embedded model is on no hub
    assert "# my run" in card.text
    assert "rewards (lfpo)" in card.text
    last = trainer.run.read_metrics()[-1]
    assert f"{100 * last['eval/quick/accuracy']:.1f} %" in card.text
    assert str(tmp_path) not in card.text
    assert (tmp_path / "my run/checkpoints/step-1/model/README.md").read_text().startswith("---\nlibrary_name: lfpo")


def test_a_sampler_s_name_may_hold_a_bar(tmp_path: Path):
    values = {f"eval/a|b/{key}": 0.5 for key in ("accuracy", "low", "high", "nfe")}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, **values}) + "\n")
    card = model_card(Run(tmp_path), {"model": "embedded", "data_file": "d.jsonl"}, "train")
    assert r"| `a\|b` | 50.0 % (50.0 to 50.0) | 50.0 % (50.0 to 50.0) | 0.5 |" in card.splitlines()
    assert table_cell("two\nlines") == "two lines"


def test_a_card_names_a_hub_base_and_no_folder_of_this_machine(tmp_path: Path):
    (tmp_path / "LLaDA-8B-Instruct").mkdir()
    run = Run(tmp_path)
    local = model_card(run, {"model": str(tmp_path / "LLaDA-8B-Instruct"), "data_file": "d.jsonl"}, "sft")
    assert "`LLaDA-8B-Instruct`" in local and str(tmp_path) not in local and "base_model" not in local
    assert "base_model: org/name" in model_card(run, {"model": "org/name", "data_file": "d.jsonl"}, "sft")
    config: dict[str, Any] = {"model": "embedded", "output_dir": "/home/ann/run", "data_file": "/home/ann/rows.jsonl"}
    text = model_card(run, config | {"task": None, "reward_funcs": ["/home/ann/rewards.py:short", "length"]}, "train")
    assert "/home" not in text and "- Data: `rows.jsonl`" in text and "- rewards.py:short" in text
    text = model_card(run, {"task": "gsm8k@train=/home/ann/a.jsonl,test=~/b.jsonl"}, "train")
    assert "- Data: `gsm8k@train=a.jsonl,test=b.jsonl`" in text


def test_a_card_says_how_to_measure_on_what_the_run_was_measured_on(tmp_path: Path):
    own = {"eval_file": "/home/ann/test.csv", "columns": {"question": "prompt"}, "correct": "my_rewards.exact"}
    text = model_card(Run(tmp_path), {"model": "embedded", "data_file": "/home/ann/rows.csv", **own}, "train")
    assert """--eval_file test.csv --columns '{"question": "prompt"}' --correct my_rewards.exact""" in text
    assert "--task choice" in model_card(Run(tmp_path), {"model": "embedded", "task": "choice"}, "train")


def test_a_sampler_added_on_resuming_has_no_first_result(tmp_path: Path):
    def evaluation(step: int, *samplers: str) -> dict[str, float]:
        found = {"accuracy": step / 4, "low": 0.0, "high": 1.0, "nfe": 8.0}
        return {"step": step, **{f"eval/{name}/{key}": value for name in samplers for key, value in found.items()}}

    run = Run(tmp_path)
    for row in (evaluation(1, "old"), {"step": 2, "reward": 0.5}, evaluation(3, "old", "new")):
        run.log(row)
    text = model_card(run, {"task": "choice"}, "train")
    assert "at step 1 and step 3" in text
    assert "| `old` | 25.0 % (0.0 to 100.0) | 75.0 % (0.0 to 100.0) | 8.0 |" in text
    assert "| `new` | - | 75.0 % (0.0 to 100.0) | 8.0 |" in text


def test_a_card_shows_the_length_and_template_of_the_run_and_the_run_it_started_from(tmp_path: Path):
    (tmp_path / "sft" / "model").mkdir(parents=True)
    run = Run(tmp_path / "chat")
    (run.dir / "rollouts").mkdir(parents=True)
    row = {"prompt": [{"role": "user", "content": "2+2"}], "token_ids": [1] * 256}
    (run.dir / "rollouts" / "step-1.jsonl").write_text(json.dumps(row) + "\n")
    text = model_card(run, {"model": str(tmp_path / "sft" / "model"), "task": "gsm8k"}, "train")
    assert "--prompt '...' --sampler.gen_length 256 --chat\n" in text
    assert "- Started from: `sft/model`" in text and "base_model" not in text and str(tmp_path) not in text
    assert "--sampler.gen_length 32\n" in model_card(Run(tmp_path), {"model": "embedded", "gen_length": 32}, "sft")
