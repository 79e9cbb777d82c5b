"""Checkpoints with the published key names, vocabularies and special tokens, but two narrow layers: the 8B path, and
dllm's Qwen3 and iLLaDA, of which no published checkpoint was seen."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import lfpo.models.tensor_files
import tiny
from lfpo.cli.command_line import main
from lfpo.config.files import read_json, write_json
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from lfpo.models.layouts import LAYOUTS
from processes import run_lfpo
from rank_runs import metrics
from tiny import read_weights, write_tokenizer
from written_runs import write_rows

NARROW = {"d_model": 32, "n_layers": 2, "n_heads": 4, "mlp_hidden_size": 64}
SPECIAL = {"<|startoftext|>": 126080, "<|endoftext|>": 126081, "<|mdm_mask|>": 126336}
SPECIAL |= {"<|start_header_id|>": 126346, "<|end_header_id|>": 126347, "<|eot_id|>": 126348}
TEMPLATE = (
    "{{ '<|startoftext|>' }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
KEYS = (
    "model.transformer.wte.weight",
    "model.transformer.blocks.1.attn_out.weight",
    "model.transformer.blocks.1.ff_proj.weight",
    "model.transformer.ff_out.weight",
)


def write_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """In shards with an index, as published; returns its keys."""
    config = {**LAYOUTS["llada-8b"], **NARROW}
    vocab = {token: i for i, token in enumerate(tiny.byte_alphabet())}
    named = {i: token for token, i in SPECIAL.items()}
    vocab |= {named.get(i, f"<{i}>"): i for i in range(256, config["vocab_size"])}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tiny.byte_level(vocab),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL),
    )
    fast.chat_template = TEMPLATE
    with monkeypatch.context() as small:
        small.setattr(lfpo.models.tensor_files, "FILE_BYTES", 2**24)
        save_model(init_model(config, seed=0), folder, fast)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert set(KEYS) <= index["weight_map"].keys()
    return set(index["weight_map"])


@pytest.mark.long
def test_the_paper_s_gsm8k_recipe_trains_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two iterations with a gradient on two ranks, and a model that loads under the published names."""
    keys, run = write_checkpoint(tmp_path / "start", monkeypatch), tmp_path / "run"
    rows = [{"question": f"Ann has {n} apples and buys 2. How many?", "answer": f"#### {n + 2}"} for n in range(4)]
    for split, part in (("train", rows[:3]), ("test", rows[3:])):
        write_rows(tmp_path / f"gsm8k/{split}.jsonl", part)
    command = f"train paper/llada-8b-gsm8k --model {tmp_path}/start --task gsm8k@{tmp_path}/gsm8k --output_dir {run}"
    command += " --lora.r 4 --lora.lora_alpha 8 --dtype bfloat16 --fsdp true --threads 1 --learning_rate 1e-3"
    command += " --max_steps 2 --prompts_per_iteration 2 --num_generations 2 --optimizer_steps_per_iteration 1"
    command += " --update_tokens 1024 --rollout_tokens 1024 --eval_size 1 --eval_steps 2 --save_steps 2"
    command += " --sampler.gen_length 8 --sampler.block_length 4 --sampler.steps 32"
    for name in ("greedy", "threshold", "confidence"):
        command += f" --eval_samplers.{name}.gen_length 8 --eval_samplers.{name}.block_length 8"
    command += " --eval_samplers.greedy.steps 8 --eval_samplers.confidence.steps 8"
    ended = run_lfpo(*command.split(), "--reward_funcs", "[reward_samples.even_tokens]", ranks=2)
    assert ended.returncode == 0, ended.stderr
    lines = metrics(run)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert all(line["grad_norm"] > 0 for line in lines[1:])
    assert set(read_weights(run / "model")) == keys
    model = load_model(run / "model")
    assert (model.vocab_size, model.mask_id) == (126464, 126336)


# dllm's Qwen3 and iLLaDA

SMALL_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<[MASK]>")
NARROW_FIELDS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
NARROW_FIELDS |= {"intermediate_size": 64, "vocab_size": 262, "eos_token_id": 256, "pad_token_id": 256}
CLASSES = {"dllm-0.6b": (Qwen3ForCausalLM, Qwen3Config), "illada-8b": (LlamaForCausalLM, LlamaConfig)}
MASK = {"dllm-0.6b": 259, "illada-8b": 260}


def write(layout: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint whose config.json has no mask token, as dllm's; the tokenizer's vocabulary names it."""
    config = {**LAYOUTS[layout], **NARROW_FIELDS, "init_std": 0.3, **changes}
    if layout == "dllm-0.6b":
        config["head_dim"] = 16
    save_model(init_model({**config, "mask_token_id": MASK[layout]}, seed=1), folder)
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {k: v for k, v in config.items() if k != "mask_token_id"})
    write_tokenizer(folder, SMALL_SPECIAL, eos_token="<|endoftext|>")
    settings = read_json(folder / "tokenizer_config.json")
    settings["chat_template"] = "{% if enable_thinking is defined and enable_thinking is false %}<think>{% endif %}a"
    write_json(folder / "tokenizer_config.json", settings)
    return folder


@torch.no_grad()
@pytest.mark.parametrize("layout", CLASSES)
def test_logits_are_those_of_transformers_with_full_attention(layout: str, tmp_path: Path) -> None:
    folder = write(layout, tmp_path / "m")
    model, (cls, config_cls) = load_model(folder), CLASSES[layout]
    assert (model.mask_id, model.block_length, model.eos_id) == (MASK[layout], None, 256)
    config = read_json(folder / "config.json")
    keys = {
        *NARROW_FIELDS,
        "vocab_size",
        "rope_theta",
        "rms_norm_eps",
        "tie_word_embeddings",
        "head_dim",
    } & config.keys()
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
    write_json(folder / "config.json", {**read_json(folder / "config.json"), key: value})
    assert main(["sample", "--model", str(folder), "--prompt", "a"]) == 2
    error = capsys.readouterr().err
    assert said in error and "config.json" in error and error.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "name"),
    [("dllm-0.6b", "m"), ("dllm-0.6b", "Qwen3-0.6B-diffusion-bd3lm-v0.1"), ("illada-8b", "m")],
)
def test_supervised_steps_two_iterations_samples_and_an_export(
    layout: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tuned, run = write(layout, tmp_path / name), tmp_path / "sft", tmp_path / "run"
    sft = f"sft --model {folder} --tasks.sudoku 1 --steps 2 --batch_size 2 --threads 1 --output_dir {tuned}"
    assert main(sft.split()) == 0
    train = f"train --model {tuned / 'model'} --task sudoku --output_dir {run} --threads 1 --max_steps 2 --eval_steps 0"
    train += " --prompts_per_iteration 2 --num_generations 2 --optimizer_steps_per_iteration 1 --learning_rate 1e-2"
    train += " --sampler.gen_length 8 --sampler.steps 4 --reward_funcs reward_samples.even_tokens"
    assert main(train.split()) == 0
    rows = metrics(run)
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
    config = read_json(tmp_path / "exported" / "config.json")
    assert config["architectures"] == [CLASSES[layout][0].__name__]
    assert config.get("block_length") == blocks
