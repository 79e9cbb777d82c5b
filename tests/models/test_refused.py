"""What would make another network is honoured or refused: fields of config.json, tensors, token ids."""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from golden_families import SPECIAL, TEXT, golden, nemotron
from lfpo.cli import main
from lfpo.config.errors import UserError
from lfpo.contrib.canvases.model import CanvasModel
from lfpo.models import load_model
from lfpo.models.loading import load_tokenizer
from tiny import write_dream, write_llada
from tiny_gemma import write_gemma
from tiny_modernbert import write_modernbert

MASK, EOS, END = (TEXT + SPECIAL["sdar"].index(token) for token in ("<|MASK|>", "<|endoftext|>", "<|im_end|>"))


def change(source: Path, file: str = "config.json", **changes: Any) -> Path:
    config = json.loads((source / file).read_text()) if (source / file).exists() else {}
    (source / file).write_text(json.dumps(config | changes))
    return source


YARN = {"type": "yarn", "factor": 4.0}
# (writer, changes of config.json, sentence)
CONFIGS: list[tuple[Callable[..., Path], dict[str, Any], str]] = [
    (partial(golden, "lladamoe"), {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported"),
    (partial(golden, "llada2_0"), {"partial_rotary_factor": None}, "partial_rotary_factor must not be null"),
    (partial(golden, "llada2_0"), {"norm_softmax": True}, "norm_softmax True is not supported"),
    (partial(golden, "llada2_0"), {"use_rmsnorm": False}, "use_rmsnorm False is not supported"),
    (partial(golden, "llada2_0"), {"score_function": "softmax"}, "score_function 'softmax'"),
    (partial(golden, "sdar"), {"rope_scaling": YARN}, "rope_scaling"),
    (partial(golden, "sdar"), {"mask_token_id": EOS}, f"the mask token is the eos token, too (id {EOS})"),
    (partial(golden, "sdar"), {"mask_token_id": MASK, "pad_token_id": MASK}, "the mask token is the pad token, too"),
    (
        partial(golden, "llada"),
        {"model_type": "gpt2"},
        "model_type 'gpt2' is not a known family; known: DiffuCoder, Dream",
    ),
    (partial(golden, "llada"), {"alibi": True}, "alibi True is not supported"),
    (partial(golden, "llada"), {"rope": False}, "rope False is not supported"),
    (partial(golden, "llada"), {"activation_type": "gelu"}, "activation_type 'gelu' is not supported"),
    (partial(golden, "llada"), {"layer_norm_type": "default"}, "layer_norm_type 'default' is not supported"),
    (partial(golden, "llada"), {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported"),
    (write_dream, {"rope_scaling": YARN}, "rope_scaling"),
    (write_dream, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    (nemotron, {"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
    (nemotron, {"sliding_window": 64}, "sliding_window 64 is not supported"),
    (nemotron, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    (write_modernbert, {"mlp_dropout": 0.1}, "mlp_dropout 0.1 is not supported"),
    (write_modernbert, {"decoder_bias": False}, "decoder_bias False is not supported"),
    (write_modernbert, {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
    (write_gemma, {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
    (write_gemma, {"text_config": {"use_bidirectional_attention": "all"}}, "use_bidirectional_attention 'all'"),
]
EVERY: list[Callable[..., Path]] = [write_llada, write_dream]
EVERY += [partial(golden, name) for name in ("lladamoe", "llada2_0", "sdar", "sdar_moe")]
for write in EVERY:
    CONFIGS += [
        (write, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (write, {"use_sliding_window": True}, "use_sliding_window"),
        (write, {"rope_parameters": {"type": "linear", "factor": 2.0}}, "rope_parameters of type 'linear'"),
        (write, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config {'quant_method': 'fp8'}"),
    ]


@pytest.mark.parametrize(("write", "changes", "sentence"), CONFIGS, ids=[str(row[1])[:50] for row in CONFIGS])
def test_another_network_is_refused(write: Callable[..., Path], changes: dict[str, Any], sentence: str, tmp_path: Path):
    source = write(tmp_path / "m")
    file = source / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(UserError, match=re.escape(sentence)):
        load_model(source)


def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    return folder


def pickled(folder: Path) -> Path:
    source = write_llada(folder)
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    return source


def written(file: Path) -> Path:
    file.write_text("x")
    return file


# (what is given as a model, in a folder; sentence)
GIVEN: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: adapter(f / "lora"), "holds a LoRA adapter only; merge it: .*merge_and_unload"),
    (lambda f: adapter(f / "step-3/model").parent, r"merge it: .*`lfpo export \S+step-3 --output FOLDER`"),
    (lambda f: write_llada(f / "run/model").parent, "the folder of a run or a checkpoint; its model is in .*run/model"),
    (lambda f: f, "config.json: missing"),
    (lambda f: pickled(f / "p"), "no model.safetensors and .* pickled weights are not read"),
    (lambda f: written(f / "m.gguf"), r"run `lfpo convert \S+m.gguf FOLDER`"),
    (lambda f: write_llada(f / "tiny") / "model.safetensors", r"is a file; give its folder, '\S+tiny'"),
    (lambda f: "org/model.gguf", "no such folder"),
    (lambda f: {"a": 1}, "found an object of dict; write it and its tokenizer by save_pretrained"),
]


@pytest.mark.parametrize(("make", "sentence"), GIVEN, ids=[sentence[:30] for _, sentence in GIVEN])
def test_what_is_no_model_is_one_sentence(make: Callable[[Path], Any], sentence: str, tmp_path: Path):
    with pytest.raises(UserError, match=sentence) as caught:
        load_model(make(tmp_path))
    assert "\n" not in str(caught.value)


# (tensor, its value or None, sentence): names as in the file
TENSORS: list[tuple[str, torch.Tensor | None, str]] = [
    ("model.layers.1.mlp.experts.2.up_proj.weight", None, "1 tensors are missing, first"),
    ("model.layers.1.mlp.gate.expert_bias", None, "1 tensors are missing, first"),
    ("model.layers.0.attention.query_key_value.weight", torch.zeros(5, 5), "has shape [5, 5], config.json says"),
    ("model.layers.7.attention.dense.weight", torch.zeros(2), "1 tensors do not belong to this architecture, first"),
]


@pytest.mark.parametrize(("key", "value", "sentence"), TENSORS)
def test_a_wrong_tensor_is_named(key: str, value: torch.Tensor | None, sentence: str, tmp_path: Path):
    source = golden("llada2_0", tmp_path / "m")
    weights = {**tiny.read_weights(source), key: value}
    tiny.save_weights(source, {name: weight for name, weight in weights.items() if weight is not None})
    with pytest.raises(
        UserError, match=f"{re.escape(key)}.*{re.escape(sentence)}|{re.escape(sentence)}.*{re.escape(key)}"
    ):
        load_model(source)


def test_windows_are_honoured_by_the_families_that_have_them(tmp_path: Path):
    assert load_model(write_modernbert(tmp_path / "bert")).backbone.config.sliding_window
    found = load_model(write_gemma(tmp_path / "gemma"))
    assert isinstance(found, CanvasModel) and found.windows


def test_what_says_the_same_twice_is_taken(tmp_path: Path):
    plain = load_model(golden("sdar", tmp_path / "plain"))
    theta = plain.config["rope_theta"]
    again: dict[str, Any] = {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}, "attention_dropout": 0.1}
    again["layer_types"] = ["full_attention"] * 3
    twice = load_model(change(golden("sdar", tmp_path / "twice"), **again))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(plain(ids), twice(ids))


def test_a_padding_token_of_minus_one_is_none(tmp_path: Path):
    model = load_model(change(golden("sdar", tmp_path / "m"), pad_token_id=-1))
    assert model.pad_id == model.eos_id == EOS


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_of_several_ends_the_end_of_a_turn_is_taken_in_either_file(file: str, tmp_path: Path):
    source = change(golden("sdar", tmp_path / "m"), eos_token_id=EOS)
    assert load_model(source).eos_id == EOS
    assert load_model(change(source, file, eos_token_id=[EOS, END])).eos_id == END
    assert load_tokenizer(source).convert_ids_to_tokens(END) == "<|im_end|>"


@pytest.mark.parametrize("command", ["eval", "sample", "sft"])
def test_a_model_whose_predictions_are_not_numbers_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = tiny.write_llada(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    broken = "model.transformer.ln_f.weight"
    save_file({**weights, broken: weights[broken] * math.nan}, model / "model.safetensors", {"format": "pt"})
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    sft = ["--data_file", str(tmp_path / "rows.jsonl"), "--gen_length", "4", "--steps", "8", "--batch_size", "1"]
    keys = {
        "eval": ["--task", "choice", "--n", "2", "--output", str(tmp_path / "out")],
        "sample": ["--prompt", "a", "--sampler.gen_length", "4"],
        "sft": [*sft, "--output_dir", str(tmp_path / "run")],
    }
    assert main([command, "--model", str(model), *keys[command]]) == 2
    said = capsys.readouterr().err
    if command == "sft":
        assert "loss or gradient was not finite 5 times in a row" in said
        assert not (tmp_path / "run" / "model").exists()
    else:
        assert f"model {model}: its predictions are not numbers (model.norm.weight holds values" in said
        assert not list(tmp_path.glob("out/*.json*")), "kept answers would count as done"
