"""Fields of config.json that would make another network are honoured or refused, in every family and spelling."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from autoregressive import MODELS, write_source
from golden_families import SPECIAL, TEXT, golden
from lfpo.cli import main
from lfpo.config.errors import UserError
from lfpo.contrib.canvases.model import CanvasModel
from lfpo.models import load_model
from lfpo.models.loading import load_tokenizer
from tiny_gemma import write_gemma
from tiny_modernbert import write_modernbert

MASKED = sorted(SPECIAL.keys() - {"llada"})  # with config.json's usual field names


def change(source: Path, file: str = "config.json", **changes: Any) -> Path:
    config = json.loads((source / file).read_text()) if (source / file).exists() else {}
    (source / file).write_text(json.dumps(config | changes))
    return source


def refused(source: Path) -> str:
    """What is said of a checkpoint; it must name the folder."""
    with pytest.raises(UserError) as raised:
        load_model(source)
    assert str(source) in str(raised.value)
    return str(raised.value).partition(": ")[2]


OTHER_NETWORKS: list[tuple[dict[str, Any], str]] = [
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"rope_parameters": {"type": "linear", "factor": 2.0}}, "'linear'"),
    ({"rope_parameters": {"rope_theta": 123.0}}, "in rope_parameters 123.0"),
    ({"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4} is not supported"),
]


@pytest.mark.parametrize(("changes", "words"), OTHER_NETWORKS, ids=lambda value: str(value)[:40])
def test_another_network_is_refused_in_every_family(changes: dict[str, Any], words: str, tmp_path: Path):
    for name in MASKED:
        # Nemotron has scaled rotary embeddings of its class, in rope_parameters.
        if name != "nemotron_labs_diffusion" or "rope" not in str(changes):
            assert words in refused(change(golden(name, tmp_path / name), **changes)), name
    for write in (tiny.write_llada, tiny.write_dream):
        source = change(write(tmp_path / write.__name__), **changes)
        assert words in refused(source), write


def test_windows_are_honoured_by_the_families_that_have_them(tmp_path: Path):
    assert load_model(write_modernbert(tmp_path / "bert")).backbone.config.sliding_window
    gemma = write_gemma(tmp_path / "gemma")
    text = json.loads((gemma / "config.json").read_text())["text_config"]
    found = load_model(gemma)
    assert isinstance(found, CanvasModel) and found.windows
    quantised = {**text, "quantization_config": {"bits": 4}}
    assert "quantization_config" in refused(change(gemma, text_config=quantised))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llada2_0", {"partial_rotary_factor": None}, "partial_rotary_factor must not be null"),
        ("llada2_0", {"routed_scaling_factor": None}, "routed_scaling_factor must not be null"),
        ("llada2_0", {"norm_softmax": True}, "norm_softmax True is not supported"),
        ("llada2_0", {"use_rmsnorm": False}, "use_rmsnorm False is not supported"),
        ("sdar", {"rms_norm_eps": None}, "rms_norm_eps must not be null"),
        ("lladamoe", {"moe_layer_freq": [1, 1]}, "moe_layer_freq has 2 values for 3 layers"),
        ("nemotron_labs_diffusion", {"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
        ("sdar", {"block_size": 3.5}, "block_size 3.5 must be a whole number"),
    ],
)
def test_fields_of_a_family(name: str, changes: dict[str, Any], words: str, tmp_path: Path):
    assert words in refused(change(golden(name, tmp_path / "m"), **changes))


def test_what_says_the_same_twice_is_taken(tmp_path: Path):
    plain = load_model(golden("sdar", tmp_path / "plain"))
    theta = plain.config["rope_theta"]
    again: dict[str, Any] = {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}, "attention_dropout": 0.1}
    again["layer_types"] = ["full_attention"] * 3
    twice = load_model(change(golden("sdar", tmp_path / "twice"), **again))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(plain(ids), twice(ids))


@pytest.mark.parametrize("name", MODELS)
def test_models_to_be_converted_follow_the_same_rules(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = change(write_source(tmp_path / "source", name), rope_theta=1.0, rope_parameters={"rope_theta": 123.0})
    assert main(["convert", str(source), str(tmp_path / "made")]) == 2
    assert "in rope_parameters 123.0" in capsys.readouterr().err


MASK, EOS, END = (TEXT + SPECIAL["sdar"].index(token) for token in ("<|MASK|>", "<|endoftext|>", "<|im_end|>"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_token_id": EOS}, f"the mask token is the eos token, too (id {EOS})"),
        ({"pad_token_id": MASK, "mask_token_id": MASK}, f"the mask token is the pad token, too (id {MASK})"),
        ({"mask_token_id": True}, "mask_token_id True must be a whole number"),
        ({"mask_token_id": -1}, "mask_token_id -1 must be a whole number"),
        ({"eos_token_id": -1}, "eos_token_id -1 must be a whole number"),
        ({"eos_token_id": 2.0}, "eos_token_id 2.0 must be a whole number"),
        ({"pad_token_id": -2}, "pad_token_id -2 must be a whole number"),
    ],
)
def test_token_ids_are_tokens_and_the_mask_is_one_of_its_own(changes: dict[str, Any], words: str, tmp_path: Path):
    assert words in refused(change(golden("sdar", tmp_path / "m"), **changes))


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
