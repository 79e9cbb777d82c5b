"""Training of a model that attends block by block, from rollouts to the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny
from lfpo.cli.command_line import main
from lfpo.models import load_model
from lfpo.objectives import OBJECTIVES
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.checkpoint import latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from test_distributed import ARGUMENTS, assert_same_run, metrics, run
from test_objective_training import SMALL_RUNS
from test_train import ROWS, config, even_letters, first_letter, without_times

BLOCK = 4
REFUSED = {"spg", "stable_drl", "mdpo", "dtree_rpo", "justgrpo"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("block-training") / "llada", block_length=BLOCK)


def test_learns_and_leaves_a_run_that_all_commands_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    six = SamplerConfig(gen_length=6, temperature=1.0)  # rounded up to two blocks
    args = config(tmp_path, max_steps=20, num_generations=8, eval_steps=20, save_steps=10, sampler=six)
    trainer = LFPOTrainer(str(model), even_letters, args=args, train_dataset=ROWS, eval_dataset=ROWS)
    assert trainer.sampler.block_length == BLOCK and trainer.sampler.gen_length == 8
    folder = trainer.train()
    rows = metrics(tmp_path / "run")
    early, late = (sum(r["reward"] for r in part) / 5 for part in (rows[1:6], rows[-5:]))
    assert late > early + 0.2
    assert rows[-1]["eval/greedy/reward"] > 0.8
    assert rows[-1]["flops"] > 0
    assert load_model(folder).block_length == BLOCK
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/report.html").exists()
    given = ["--model", str(folder)]
    assert main(["sample", "--prompt", "abc", "--sampler.gen_length", "8", "--show_steps", "true", *given]) == 0
    assert main(["eval", "--task", "choice", "--n", "2", "--output", str(tmp_path / "eval.json"), *given]) == 0
    assert capsys.readouterr().err == ""


def test_resume_is_bit_identical_to_an_unbroken_run(model: Path, tmp_path: Path):
    whole = config(tmp_path, output_dir=str(tmp_path / "whole"), max_steps=4, ema_decay=0.5)
    LFPOTrainer(str(model), first_letter, args=whole, train_dataset=ROWS, eval_dataset=ROWS).train()
    part = config(tmp_path, max_steps=2, ema_decay=0.5)
    LFPOTrainer(str(model), first_letter, args=part, train_dataset=ROWS, eval_dataset=ROWS).train()
    part.max_steps = 4
    LFPOTrainer(str(model), first_letter, args=part, train_dataset=ROWS, eval_dataset=ROWS).train(resume=True)
    assert without_times(metrics(tmp_path / "run")) == without_times(metrics(tmp_path / "whole"))
    for name in ("model", "reference"):
        finals = [latest_checkpoint(tmp_path / r) for r in ("run", "whole")]
        assert finals[0] is not None and finals[1] is not None
        a, b = (load_model(f / name) for f in finals if f is not None)
        assert a.block_length == b.block_length == BLOCK
        assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in REFUSED])
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(name: str, model: Path, tmp_path: Path):
    """With LoRA and FSDP; prompts of different lengths, so that blocks begin at different places."""
    settings = {"name": name, **SMALL_RUNS.get(name, {})}
    if name in ("diffu_grpo", "wd1"):
        settings["p_mask_prompt"] = 0.0
    given = ["--objective", str(settings).replace("'", ""), "--lora", "{r: 2, lora_alpha: 4}"]
    given += ["--prompts_per_iteration", "2", "--num_generations", "3", "--optimizer_steps_per_iteration", "4"]
    given += ["--learning_rate", "1e-3", "--eval_size", "1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    alone = [*ARGUMENTS, "--model", str(model), *given, "--max_steps", "2", "--output_dir"]
    assert main([*alone, str(whole)]) == 0
    process = run(parts, model, 2, *given, "--max_steps", "1", "--fsdp", "true")
    assert process.returncode == 0, process.stderr
    assert main([*alone, str(parts), "--resume"]) == 0
    assert all(row["grad_norm"] > 0 for row in metrics(whole)[1:])
    assert_same_run(whole, parts)
