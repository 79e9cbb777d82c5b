"""Checkpoints in the published layouts of block-diffusion models and mixtures of experts."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from golden_families import golden, golden_io, golden_sampler
from lfpo.base.errors import UserError
from lfpo.cli import main
from lfpo.models import load_model, load_tokenizer, save_model
from lfpo.runs.card import SAMPLER
from tiny import read_weights, save_weights, write_llada

BLOCKS = {"llada": None, "lladamoe": None, "llada2_0": 32, "llada2_1": 32, "sdar": 4, "sdar_moe": 4}
FAMILIES = list(BLOCKS)


def fails(call: Callable[[], object], *names: str) -> None:
    """The call raises a one-line UserError that contains every name."""
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for name in names:
        assert name in text, text


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_published_code(name: str, tmp_path: Path) -> None:
    model, io = load_model(golden(name, tmp_path / name)), golden_io(name)
    torch.testing.assert_close(model(io["full.ids"]), io["full.logits"], rtol=0, atol=1e-4)
    assert io["full.logits"].abs().max() > 10


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_saving_gives_the_same_tensors_under_the_same_keys(name: str, tmp_path: Path) -> None:
    source = golden(name, tmp_path / name)
    save_model(load_model(source), tmp_path / "saved")
    before, after = read_weights(source), read_weights(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_blocks(name: str, tmp_path: Path) -> None:
    source = golden(name, tmp_path / name)
    model, tokenizer = load_model(source), load_tokenizer(source)
    assert model.block_length == BLOCKS[name]
    assert model.mask_id == tokenizer.mask_token_id
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


@torch.no_grad()
@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "llada"])
def test_plain_transformers_loads_an_export(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the caller's own mask where the model attends block by block."""
    source, io = golden(name, tmp_path / name), golden_io(name)
    folder = tmp_path / "exported"
    assert main(["export", str(source), "--layout", "transformers", "--output", str(folder)]) == 0
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == load_model(source).family.architecture
    torch.testing.assert_close(model(io["full.ids"]).logits, io["full.logits"], rtol=0, atol=1e-4)
    card = (folder / "README.md").read_text()
    assert SAMPLER in card
    if BLOCKS[name] is None:
        return
    mask = io["block.mask"][None, None]
    torch.testing.assert_close(model(io["block.ids"], mask).logits, io["block.logits"], rtol=0, atol=1e-4)
    if name == "sdar":
        assert model.config.block_length == 4
        run = golden_sampler(name)["runs"][0]
        prompt, tokens = run["prompt"], run["tokens"]
        code = SAMPLER.removeprefix("```python\n").removesuffix("\n```").replace("PATH_TO_THIS_FOLDER", str(folder))
        code = code.replace('"YOUR PROMPT"', repr(bytes(prompt).decode())).replace("64", str(len(tokens) - len(prompt)))
        capsys.readouterr()
        exec(code, {})
        assert capsys.readouterr().out == load_tokenizer(source).decode(tokens[len(prompt) :]) + "\n"


def test_the_experts_bias_is_never_rounded_nor_trained(tmp_path: Path) -> None:
    source = golden("llada2_0", tmp_path / "m")
    model = load_model(source, dtype=torch.bfloat16)
    key = "model.layers.1.mlp.gate.expert_bias"
    own = read_weights(source)[key]
    assert not torch.equal(own, own.bfloat16().float())
    assert not any("bias" in name for name, _ in model.named_parameters())
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    for saved in (model, model.frozen_copy(), model.to(torch.float16)):
        save_model(saved, tmp_path / "saved")
        assert torch.equal(read_weights(tmp_path / "saved")[key], own)


@torch.no_grad()
def test_checkpoints_in_several_files(tmp_path: Path) -> None:
    """An expert's tensors, and the experts of a layer, may be in different files."""
    source = golden("llada2_0", tmp_path / "one")
    many = golden("llada2_0", tmp_path / "many")
    weights = read_weights(source)
    for file in many.glob("model.safetensors*"):
        file.unlink()
    save_weights(many, weights, shards=3)
    ids = golden_io("llada2_0")["full.ids"]
    assert torch.equal(load_model(many)(ids), load_model(source)(ids))
    assert main(["export", str(many), "--layout", "transformers", "--output", str(tmp_path / "exported")]) == 0
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    torch.testing.assert_close(model(ids).logits, load_model(source)(ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("model.layers.1.mlp.experts.2.up_proj.weight", None),
        ("model.layers.1.mlp.gate.expert_bias", None),
        ("model.layers.0.attention.query_key_value.weight", 100),
    ],
)
def test_a_wrong_tensor_is_named_as_in_the_file(key: str, change: int | None, tmp_path: Path) -> None:
    source = golden("llada2_0", tmp_path / "m")
    weights = read_weights(source)
    if change is None:
        del weights[key]
    else:
        weights[key] = weights[key][:change].clone()
    save_weights(source, weights)
    fails(lambda: load_model(source), str(source), key)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("lladamoe", {"clip_qkv": 8.0}, ("clip_qkv 8.0",)),
        ("lladamoe", {"shared_expert_intermediate_size": 24}, ("shared_expert_intermediate_size 24",)),
        ("lladamoe", {"moe_router_enable_expert_bias": True}, ("moe_router_enable_expert_bias True",)),
        ("lladamoe", {"num_experts": None}, ("num_experts", "missing")),
        ("lladamoe", {"expert_intermediate_size": None}, ("expert_intermediate_size", "missing")),
        ("llada", {"num_experts": 4}, ("qk_layernorm",)),
        ("llada2_0", {"score_function": "softmax"}, ("score_function 'softmax'", "'sigmoid'")),
        ("llada2_0", {"moe_router_enable_expert_bias": False}, ("moe_router_enable_expert_bias False",)),
        ("sdar", {"rope_scaling": {"type": "yarn"}}, ("rope_scaling", "yarn")),
        ("sdar_moe", {"num_experts_per_tok": None}, ("num_experts_per_tok", "missing")),
    ],
)
def test_what_a_class_of_transformers_lacks_is_refused(
    name: str, changes: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    source = golden(name, tmp_path / "m", **changes)
    fails(lambda: load_model(source), "config.json", *words)


def test_a_transformers_that_routes_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = golden("llada2_0", tmp_path / "m")
    monkeypatch.setattr("lfpo.models.families.VERSION", "5.5.4")
    fails(lambda: load_model(source), "transformers 5.5.4", "5.6 or later")
    monkeypatch.setattr("lfpo.models.families.VERSION", "5.10.0.dev0")
    load_model(source)


def test_the_end_of_a_chat_turn_is_eos(tmp_path: Path) -> None:
    """As in SDAR's files: config.json names <|endoftext|>, generation_config.json lists <|im_end|> too."""
    source = golden("sdar", tmp_path / "m")
    assert load_model(source).eos_id == 128
    (source / "generation_config.json").write_text('{"eos_token_id": [129, 128]}')
    model = load_model(source)
    assert (model.eos_id, model.pad_id) == (129, 128)
    save_model(model, tmp_path / "saved")
    assert load_model(tmp_path / "saved").eos_id == 129
    (source / "generation_config.json").write_text('{"eos_token_id": 128}')
    assert load_model(source).eos_id == 128


def test_a_missing_mask_token(tmp_path: Path) -> None:
    source = golden("llada2_0", tmp_path / "m")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (source / file).write_text((source / file).read_text().replace("<|mask|>", "<|none|>"))
    fails(lambda: load_model(source), str(source), "mask")


def test_a_mask_token_with_two_texts_is_taken_by_its_id(tmp_path: Path) -> None:
    """As in SDAR's files: <MASK> in the vocabulary, <|MASK|> in tokenizer_config.json."""
    source = golden("sdar", tmp_path / "m")
    file = source / "tokenizer.json"
    file.write_text(file.read_text().replace("<|MASK|>", "<MASK>"))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings |= {"mask_token": "<|MASK|>", "added_tokens_decoder": {}}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(source).mask_token_id == load_model(source).mask_id == 130


def test_a_block_length_in_config_json(tmp_path: Path) -> None:
    assert load_model(write_llada(tmp_path / "blocks", block_length=8)).block_length == 8
    assert load_model(golden("sdar", tmp_path / "default", block_size=None)).block_length == 4
    for i, wrong in enumerate((0, "8", True)):
        folder = golden("sdar", tmp_path / str(i), block_size=wrong)
        fails(functools.partial(load_model, folder), "config.json", "block_size", repr(wrong))
