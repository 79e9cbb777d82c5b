"""Training of a model that attends block by block, from rollouts to the report."""

from pathlib import Path

import pytest

import tiny
from golden_families import golden
from letter_runs import ROWS, assert_resume_is_exact, config, even_letters, metrics
from lfpo.cli.command_line import main
from lfpo.config.sampler import SamplerConfig
from lfpo.models import load_model
from lfpo.train.rl import LFPOTrainer
from rank_checks import assert_ranks_do_not_matter
from small_runs import LFPO_PAPER

BLOCK = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("block-training") / "llada", block_length=BLOCK)


@pytest.mark.long
def test_learns_and_leaves_a_run_that_all_commands_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    six = SamplerConfig(gen_length=6, temperature=1.0)  # rounded up to two blocks
    args = config(
        tmp_path,
        max_steps=20,
        num_generations=8,
        eval_steps=20,
        save_steps=10,
        sampler=six,
        objective=LFPO_PAPER,
    )
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


@pytest.mark.long
@pytest.mark.parametrize("name", ["sdar_moe", "llada2_0"])
def test_resume_is_bit_identical_to_an_unbroken_run(name: str, tmp_path: Path):
    """Of mixtures of experts."""
    last = assert_resume_is_exact(golden(name, tmp_path / name, block_length=BLOCK), tmp_path)
    assert load_model(last / "model").block_length == load_model(last / "reference").block_length == BLOCK


@pytest.mark.long
@pytest.mark.parametrize("name", ["lfpo", "diffu_grpo", "espo", "trace_rl"])
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(name: str, model: Path, tmp_path: Path):
    """With LoRA and FSDP; prompts of different lengths, so that blocks begin at different places."""
    changes = {"p_mask_prompt": 0.0} if name == "diffu_grpo" else {}
    assert_ranks_do_not_matter(name, model, tmp_path, **changes)
