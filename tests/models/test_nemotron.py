"""Nemotron-Labs-Diffusion checkpoints: key names, configurations, adapters, 4 bits, and every command on one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from golden_families import NEMOTRON_TOKENS, TEXT, nemotron
from letter_runs import assert_resume_is_exact, metrics
from lfpo.cli.command_line import main
from lfpo.config.models import LoraSettings
from lfpo.config.sampler import SamplerConfig
from lfpo.core.doubled import noised_hidden, training_structure
from lfpo.core.engine import Ticket
from lfpo.core.structure import CAUSAL
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from lfpo.models.families import nemotron_diffusion_config
from lfpo.models.layouts import LAYOUTS
from lfpo.models.lora import attach
from lfpo.rollout.sampling import as_it_is, rollout
from lfpo.runs.card import CAUSAL_SAMPLER
from lfpo.train.queue import RolloutQueue
from rank_checks import assert_ranks_do_not_matter
from small_runs import same
from tiny import random_ids, read_weights

BLOCK = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nemotron(tmp_path_factory.mktemp("nemotron") / "checkpoint")


def test_it_loads_and_is_saved_under_its_own_names(checkpoint: Path, tmp_path: Path):
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
    ids = {name: TEXT + ("<s>", "</s>", "<|im_end|>", "<SPECIAL_100>").index(t) for name, t in NEMOTRON_TOKENS.items()}
    assert (model.mask_id, model.eos_id) == (ids["mask_token_id"], ids["eos_token_id"])
    assert tokenizer.mask_token_id == model.mask_id
    assert (model.block_length, model.causal_context, model.max_length) == (BLOCK, True, 512)
    save_model(model, tmp_path / "saved")
    before, after = read_weights(checkpoint), read_weights(tmp_path / "saved")
    assert {name.split(".")[0] for name in after} == {"encoder", "diffusion_head"}
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert json.loads((tmp_path / "saved/config.json").read_text()) == model.config
    assert model.config == json.loads((checkpoint / "config.json").read_text())


def test_queries_are_scaled_beyond_the_original_length_only():
    """Positions 0 to 31 as they are, later ones by 1 + beta log(1 + floor(position / 32))."""
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    config = nemotron_diffusion_config(LAYOUTS["nemotron-labs-diffusion-3b"])
    assert config.rope_parameters["llama_4_scaling_beta"] == 0.1
    scale = get_llama_4_attn_scale(torch.tensor([[0, 31, 32, 70]]), 0.1, 32)
    expected = 1 + 0.1 * torch.log(torch.tensor([1.0, 1.0, 2.0, 3.0]))
    torch.testing.assert_close(scale.flatten(), expected)


def test_the_layouts_have_the_published_numbers_of_weights():
    from lfpo.plan.model import model_shape

    sizes = {name: model_shape(LAYOUTS[f"nemotron-labs-diffusion-{name}"])[0] for name in ("3b", "8b")}
    head = 131072 * 3072
    layer = 3072 * (4096 + 2 * 1024) + 4096 * 3072 + 3 * 3072 * 9216 + 2 * 3072
    assert sizes["3b"].total == 26 * layer + 2 * head + 3072
    assert 8.4e9 < sizes["8b"].total < 8.6e9


@torch.no_grad()
def test_an_export_loads_in_transformers_as_an_autoregressive_model_and_comes_back(checkpoint: Path, tmp_path: Path):
    exported = tmp_path / "exported"
    assert main(["export", str(checkpoint), "--layout", "transformers", "--output", str(exported)]) == 0
    model, back, theirs = load_model(checkpoint), load_model(exported), AutoModelForCausalLM.from_pretrained(exported)
    ids = random_ids(2, 40) % TEXT  # past the length at which queries are scaled
    causal = model.head(model.hidden(ids, structure=CAUSAL))
    torch.testing.assert_close(theirs(ids).logits, causal, rtol=0, atol=2e-4)
    assert (back.block_length, back.causal_context, back.mask_id) == (BLOCK, True, model.mask_id)
    noised = ids.clone()
    noised[:, 20::3] = model.mask_id
    states = [
        noised_hidden(m, noised, ids, torch.ones_like(ids), torch.tensor([16, 18]), structure=training_structure(m))
        for m in (model, back)
    ]
    for ours, its in zip(*states, strict=True):
        assert torch.equal(ours, its)


def test_the_card_s_sampler_gives_our_tokens(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    exported = tmp_path / "exported"
    assert main(["export", str(checkpoint), "--layout", "transformers", "--output", str(exported)]) == 0
    card = (exported / "README.md").read_text()
    assert CAUSAL_SAMPLER in card and "`generate()` applies" in card
    code = (
        CAUSAL_SAMPLER.removeprefix("```python\n").removesuffix("\n```").replace("PATH_TO_THIS_FOLDER", str(exported))
    )
    capsys.readouterr()
    exec(code.replace("YOUR PROMPT", "3+4=").replace(", 64", ", 16"))
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
    prompt = tokenizer.encode("3+4=", add_special_tokens=False)
    t = rollout(model, [prompt], SamplerConfig(gen_length=16), [0])
    expected = tokenizer.decode(t.tokens[0].tolist()).split(tokenizer.eos_token)[0]
    assert capsys.readouterr().out == expected + "\n"


def test_adapters_cover_every_linear_layer_and_have_the_family_s_names(checkpoint: Path, tmp_path: Path):
    model = load_model(checkpoint)
    attach(model, LoraSettings(r=2, lora_alpha=4))
    assert len(model.factors()) == 2 * 3 * 7
    with torch.no_grad():
        for _, factor in model.factors():
            factor.normal_(std=0.05)
    save_model(model, tmp_path / "merged")
    changed = read_weights(tmp_path / "merged")
    kept = [name for name, weight in read_weights(checkpoint).items() if torch.equal(weight, changed[name])]
    assert all("proj" not in name for name in kept) and len(changed) - len(kept) == 3 * 7


@pytest.mark.long
def test_a_4_bit_base_trains_an_adapter(checkpoint: Path, tmp_path: Path):
    pytest.importorskip("bitsandbytes")
    config = {**json.loads((checkpoint / "config.json").read_text()), "intermediate_size": 128, "init_std": 0.2}
    save_model(init_model(config, seed=0), tmp_path / "start", load_tokenizer(checkpoint))
    given = ["--lora", "{r: 2}", "--load_in_4bit", "true"]
    assert trained(tmp_path / "start", tmp_path, *given)[-1]["grad_norm"] > 0


def trained(checkpoint: Path, tmp_path: Path, *more: str) -> list[dict[str, Any]]:
    """Metrics of two iterations by the command."""
    given = ["--model", str(checkpoint), "--output_dir", str(tmp_path / "run"), "--task", "choice", "--max_steps", "2"]
    given += ["--reward_funcs", "[reward_samples.even_tokens]", "--prompts_per_iteration", "2"]
    given += ["--num_generations", "4", "--objective.num_iterations", "1", "--optimizer_steps_per_iteration", "1"]
    given += ["--eval_size", "1", "--eval_steps", "0", "--save_steps", "1"]
    given += ["--sampler.gen_length", "16", "--sampler.temperature", "1.0", "--learning_rate", "1e-3", "--threads", "1"]
    assert main(["train", *given, *more]) == 0
    return metrics(tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("more", [(), ("--sampler.first_token", "masked", "--sampler.threshold", "0.5")])
def test_train_leaves_a_model_in_the_family_s_layout(checkpoint: Path, tmp_path: Path, more: tuple[str, ...]):
    rows = trained(checkpoint, tmp_path, *more)
    assert [row["step"] for row in rows] == [1, 2] or [row["step"] for row in rows] == [0, 1, 2]
    assert rows[-1]["grad_norm"] > 0 and rows[-1]["flops"] > 0
    assert read_weights(tmp_path / "run/model").keys() == read_weights(checkpoint).keys()
    assert main(["export", str(tmp_path / "run"), "--layout", "transformers"]) == 0
    assert (tmp_path / "run/model-transformers/config.json").exists()


@pytest.mark.long
def test_block_justgrpo_trains_by_the_command(checkpoint: Path, tmp_path: Path):
    given = ["--objective", "{name: justgrpo, token_fraction: 0.25, beta: 0.01}", "--sampler.remasking", "sequential"]
    assert trained(checkpoint, tmp_path, *given)[-1]["grad_norm"] > 0


@pytest.mark.long
def test_sample_sft_and_plan_take_it(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "sft"
    given = ["--model", str(checkpoint), "--tasks", "{choice: 1.0}", "--steps", "4", "--batch_size", "4"]
    given += ["--logging_steps", "1", "--warmup_steps", "0", "--threads", "1", "--learning_rate", "3e-3"]
    assert main(["sft", *given, "--output_dir", str(run)]) == 0
    losses = [row["loss"] for row in metrics(run)]
    assert losses[-1] < losses[0]
    assert json.loads((run / "model/config.json").read_text())["block_size"] == BLOCK
    sampling = ["--sampler.max_new_tokens", "16", "--sampler.threshold", "0.9", "--sampler.early_stop", "eos"]
    assert main(["sample", "--model", str(run / "model"), "--prompt", "3+4=", *sampling]) == 0
    plan = ["plan", "--model", str(checkpoint), "--task", "choice", "--gpu_memory", "16", "--tflops", "100"]
    assert main([*plan, "--tflops_float32", "10"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "each run with clean copies" in printed.out and "It fits." in printed.out


def test_a_second_loss_is_for_a_causal_context_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = ["--model", "embedded", "--tasks", "{choice: 1.0}", "--output_dir", str(tmp_path / "run")]
    assert main(["sft", *given, "--masked_loss_weight", "0.5"]) == 2
    assert "masked_loss_weight 0.5: llada models have no loss beside the masked one" in capsys.readouterr().err


def test_first_token_without_a_causal_context_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["--model", "embedded", "--task", "choice", "--output_dir", str(tmp_path / "run")]
    assert main(["train", *given, "--sampler.first_token", "causal", "--sampler.gen_length", "8"]) == 2
    assert "first_token 'causal' is for models with a causal context" in capsys.readouterr().err
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.long
def test_resume_is_bit_identical_to_an_unbroken_run(checkpoint: Path, tmp_path: Path):
    last = assert_resume_is_exact(checkpoint, tmp_path)
    assert load_model(last / "model").causal_context


def test_rollouts_in_a_queue_come_back_from_a_checkpoint(checkpoint: Path, tmp_path: Path):
    model = load_model(checkpoint)
    t = rollout(model, [[5, 6], [7]], SamplerConfig(gen_length=16), [0, 1])
    args: Any = SimpleNamespace(num_generations=1, max_steps=4, engine=SimpleNamespace(max_staleness=1))
    queues = [RolloutQueue(as_it_is(model), args, model.pad_id) for _ in range(2)]
    queues[0].tickets[3], queues[0].sampled[3] = Ticket(1, None), t
    (tmp_path / "queue").mkdir()
    queues[0].save(tmp_path / "queue")
    queues[1].load(tmp_path / "queue")
    back = queues[1].sampled[3]
    assert back.structure == t.structure and back.from_context is not None
    assert same(back, t)


@pytest.mark.long
def test_two_ranks_start_a_run_that_one_ends_as_if_it_had_run_alone(checkpoint: Path, tmp_path: Path):
    """With LoRA and FSDP; prompts of different lengths."""
    assert_ranks_do_not_matter("lfpo", checkpoint, tmp_path)
