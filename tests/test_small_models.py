"""dllm's Qwen3 checkpoints and iLLaDA: random weights in the published layouts, but two narrow layers."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lfpo.cli.command_line import main
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from lfpo.models.layouts import LAYOUTS
from tiny import read_weights, write_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<[MASK]>")
NARROW = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
NARROW |= {"intermediate_size": 64, "vocab_size": 262, "eos_token_id": 256, "pad_token_id": 256}
CLASSES = {"dllm-0.6b": (Qwen3ForCausalLM, Qwen3Config), "illada-8b": (LlamaForCausalLM, LlamaConfig)}
MASK = {"dllm-0.6b": 259, "illada-8b": 260}


def write(layout: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint whose config.json has no mask token, as dllm's; the tokenizer's vocabulary names it."""
    config = {**LAYOUTS[layout], **NARROW, "init_std": 0.3, **changes}
    if layout == "dllm-0.6b":
        config["head_dim"] = 16
    save_model(init_model({**config, "mask_token_id": MASK[layout]}, seed=1), folder)
    config = {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if k != "mask_token_id"}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, SPECIAL, eos_token="<|endoftext|>")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% if enable_thinking is defined and enable_thinking is false %}<think>{% endif %}a"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@torch.no_grad()
@pytest.mark.parametrize("layout", CLASSES)
def test_logits_are_those_of_transformers_with_full_attention(layout: str, tmp_path: Path) -> None:
    folder = write(layout, tmp_path / "m")
    model, (cls, config_cls) = load_model(folder), CLASSES[layout]
    assert (model.mask_id, model.block_length, model.eos_id) == (MASK[layout], None, 256)
    config = json.loads((folder / "config.json").read_text())
    keys = {*NARROW, "vocab_size", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "head_dim"} & config.keys()
    theirs: Any = cls(config_cls(**{k: config[k] for k in keys}))
    weights = read_weights(folder)
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "the head is tied to the embeddings"
    theirs.tie_weights()
    ids = torch.randint(0, 262, (2, 11), generator=torch.Generator().manual_seed(0))
    everything = torch.zeros(2, 1, 11, 11)  # added to the scores: nothing is hidden
    expected = theirs(ids, attention_mask=everything).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(expected, theirs(ids).logits, atol=1e-2), "a causal mask gives others"


def test_the_block_checkpoint_is_known_by_its_name_and_keeps_its_blocks(tmp_path: Path) -> None:
    folder = write("dllm-0.6b", tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1")
    model = load_model(folder)
    assert model.block_length == 32
    save_model(model, tmp_path / "trained")
    assert load_model(tmp_path / "trained").block_length == 32


def test_the_chat_template_asks_for_answers_without_thoughts(tmp_path: Path) -> None:
    """Once, also in a model that was saved and loaded again."""
    tokenizer = load_tokenizer(write("dllm-0.6b", tmp_path / "m"))
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("<|mask|>", 259)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "<think>a"
    save_model(load_model(tmp_path / "m"), tmp_path / "saved", tokenizer)
    assert load_tokenizer(tmp_path / "saved").chat_template == tokenizer.chat_template


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "rope_scaling"),
        ("layer_norm_eps", 1e-5, "layer_norm_eps"),
        ("hidden_act", "gelu", "hidden_act"),
    ],
)
def test_other_variants_of_illada_are_refused(
    key: str, value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write("illada-8b", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    assert main(["sample", "--model", str(folder), "--prompt", "a"]) == 2
    error = capsys.readouterr().err
    assert said in error and str(folder / "config.json") in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("layout", "name"), [("dllm-0.6b", "m"), ("dllm-0.6b", "Qwen3-0.6B-diffusion-bd3lm-v0.1"), ("illada-8b", "m")]
)
def test_supervised_steps_two_iterations_samples_and_an_export(
    layout: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tuned, run = write(layout, tmp_path / name), tmp_path / "sft", tmp_path / "run"
    sft = [
        "sft",
        "--model",
        str(folder),
        "--tasks",
        "{sudoku: 1}",
        "--steps",
        "2",
        "--batch_size",
        "2",
        "--threads",
        "1",
    ]
    assert main([*sft, "--output_dir", str(tuned)]) == 0
    train = ["train", "--model", str(tuned / "model"), "--task", "sudoku", "--output_dir", str(run), "--threads", "1"]
    train += ["--max_steps", "2", "--prompts_per_iteration", "2", "--num_generations", "2", "--eval_steps", "0"]
    train += ["--sampler.gen_length", "8", "--sampler.steps", "4", "--optimizer_steps_per_iteration", "1"]
    assert main([*train, "--reward_funcs", "reward_samples.even_tokens", "--learning_rate", "1e-2"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 2 and rows[-1]["grad_norm"] > 0
    states = [read_weights(path) for path in (folder, tuned / "model", run / "model")]
    for before, after in itertools.pairwise(states):
        assert before.keys() == after.keys()
        assert any(not torch.equal(before[k], after[k]) for k in before)
    blocks = 32 if "bd3lm" in name else None
    assert load_model(run / "model").block_length == blocks
    capsys.readouterr()
    assert main(["sample", "--model", str(run / "model"), "--prompt", "a", "--sampler.gen_length", "8"]) == 0
    assert "forwards" in capsys.readouterr().out
    exported = str(tmp_path / "exported")
    assert main(["export", str(run), "--layout", "transformers", "--output", exported]) == 0
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == [CLASSES[layout][0].__name__]
    assert config.get("block_length") == blocks
