"""Checkpoints of every family: logits, ids, tokenizers, saving, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from golden_families import golden, golden_io, golden_sampler
from lfpo.cli import main
from lfpo.config.errors import UserError
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from lfpo.runs.card import SAMPLER
from lfpo.train.checkpoint import export_model
from tiny import (
    LLADA_CONFIG,
    LLADA_SPECIAL,
    MAX_LENGTH,
    random_ids,
    read_weights,
    reference_logits,
    rotate,
    save_weights,
    write_dream,
    write_llada,
)


def fails(call: Callable[[], object], *names: str) -> None:
    """The call raises a one-line UserError that contains every name."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    for name in names:
        assert name in str(caught.value)


def same_weights(folder: Path, other: Path) -> None:
    """Two checkpoints hold the same tensors under the same names."""
    before, after = read_weights(folder), read_weights(other)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (write_llada, {"n_kv_heads": 1}),
        (write_dream, {}),
        (write_llada, {"weight_tying": True}),
        (write_dream, {"tie_word_embeddings": True}),
    ],
)
def test_logits_equal_an_independent_forward(tmp_path: Path, write: Any, changes: dict[str, Any]) -> None:
    folder, ids = write(tmp_path / "m", **changes), random_ids(3, 21)
    model, expected = load_model(folder), reference_logits(folder, ids)
    logits, shift = model(ids), int(write is write_dream)
    close(logits[:, shift:], expected[:, : 21 - shift])
    assert not shift or (logits[:, 1:] - expected[:, 1:]).abs().max() > 0.1
    tied = any(value is True for value in changes.values())
    assert (model.backbone.lm_head.weight is model.backbone.model.embed_tokens.weight) == tied
    save_model(model, tmp_path / "saved")
    assert read_weights(tmp_path / "saved").keys() == read_weights(folder).keys()
    assert torch.equal(load_model(tmp_path / "saved")(ids), logits)


@torch.no_grad()
@pytest.mark.parametrize(("left", "right"), [(5, 0), (0, 5), (3, 4)])
def test_padding_changes_nothing(checkpoint: Path, left: int, right: int) -> None:
    model = load_model(checkpoint)
    long, short = random_ids(1, 12 + left + right, seed=1), random_ids(1, 12, seed=2)
    row = F.pad(short, (left, right), value=model.pad_id)
    mask = torch.ones(2, row.shape[1], dtype=torch.long)
    mask[1] = F.pad(torch.ones(12), (left, right))
    logits = model(torch.cat([long, row]), mask)
    first = int(model.family.shift)  # a shifted model's prediction for a row's first token is never used
    close(logits[1, left + first : left + 12], model(short)[0, first:])
    close(logits[0], model(long)[0])
    # What stands in the padding must not matter either.
    row = row.masked_fill(mask[1:] == 0, 7)
    close(model(torch.cat([long, row]), mask)[1, left + first : left + 12], logits[1, left + first : left + 12])


@torch.no_grad()
def test_bfloat16_rotates_in_float32(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(checkpoint, dtype=torch.bfloat16)
    theta = json.loads((checkpoint / "config.json").read_text())["rope_theta"]
    attention = model.backbone.model.layers[0].self_attn
    flat: dict[str, torch.Tensor] = {}
    for name in ("q_proj", "k_proj"):
        getattr(attention, name).register_forward_hook(lambda _m, _i, out, name=name: flat.update({name: out}))
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = F.scaled_dot_product_attention

    def spy(query, key, value, **settings):
        seen.append((query, key))
        return original(query, key, value, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    model(random_ids(1, MAX_LENGTH))
    for name, got in zip(("q_proj", "k_proj"), seen[0], strict=True):
        raw = flat[name].view(1, MAX_LENGTH, -1, attention.head_dim).transpose(1, 2)
        assert raw.dtype == got.dtype == torch.bfloat16
        assert torch.equal(got, rotate(raw.float(), theta).bfloat16())


# Ids, tokenizers


def test_token_ids_and_sizes(llada: Path, dream: Path, tmp_path: Path) -> None:
    """A config without ids leaves them to the tokenizer."""
    bare = write_llada(tmp_path / "m", mask_token_id=None, eos_token_id=None, pad_token_id=None)
    for folder, ids in ((llada, (259, 257, 257)), (dream, (262, 258, 258)), (bare, (259, 257, 257))):
        model = load_model(folder)
        assert (model.mask_id, model.eos_id, model.pad_id) == ids
    assert (model.vocab_size, model.max_length) == (264, MAX_LENGTH)


def test_llada_tokenizer_gets_its_mask_token(llada: Path) -> None:
    tokenizer = load_tokenizer(llada)
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("<|mdm_mask|>", 259)
    assert tokenizer.encode("a<|mdm_mask|>", add_special_tokens=False) == [ord("a"), 259]
    assert tokenizer.decode([104, 105]) == "hi"


def test_dream_tokenizer_is_read_without_its_remote_code(dream: Path) -> None:
    load_model(dream)
    tokenizer = load_tokenizer(dream)
    assert not (dream / "IMPORTED").exists()
    assert tokenizer.mask_token_id == 262
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 258
    assert tokenizer.encode("ab ab<|mask|>", add_special_tokens=False) == [256, 257, 262]
    assert tokenizer.decode(tokenizer.encode("né 12\n", add_special_tokens=False)) == "né 12\n"
    text = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert text == "<|im_start|>user\nab<|im_end|>\n"


# Saving


@torch.no_grad()
@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_saving_keeps_names_tensors_and_config(checkpoint: Path, tmp_path: Path, with_tokenizer: bool) -> None:
    model = load_model(checkpoint)
    saved = tmp_path / "saved"
    save_model(model, saved, load_tokenizer(checkpoint) if with_tokenizer else None)
    same_weights(checkpoint, saved)
    assert json.loads((saved / "config.json").read_text()) == json.loads((checkpoint / "config.json").read_text())
    ids = random_ids(2, 9)
    assert torch.equal(load_model(saved)(ids), model(ids))
    text = "ab 12<|mask|><|mdm_mask|>"
    assert load_tokenizer(saved).encode(text) == load_tokenizer(checkpoint).encode(text)
    assert not (checkpoint / "IMPORTED").exists()


@torch.no_grad()
def test_files_that_the_index_does_not_name_are_not_read(llada: Path, llada_sharded: Path) -> None:
    assert len(list(llada_sharded.glob("*.safetensors"))) == 3
    save_file({"adapter": torch.zeros(1)}, llada_sharded / "adapter.safetensors")
    ids = random_ids(2, 9)
    assert torch.equal(load_model(llada_sharded)(ids), load_model(llada)(ids))


# Fresh models


def test_init_is_decided_by_its_seed() -> None:
    one, same, other = (init_model(LLADA_CONFIG, seed=s).state_dict() for s in (3, 3, 4))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)
    assert one["backbone.lm_head.weight"].std() == pytest.approx(0.02, rel=0.1)


# Errors


def test_a_folder_or_config_that_is_missing(tmp_path: Path) -> None:
    fails(lambda: load_model(tmp_path / "nowhere"), str(tmp_path / "nowhere"))
    fails(lambda: load_model("nobody/nothing-here"), "nobody/nothing-here", "hub")
    fails(lambda: load_model(tmp_path), str(tmp_path), "config.json")


@pytest.mark.parametrize("keep", [0, 4, 100, 20_000])
def test_truncated_weights(checkpoint: Path, keep: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    fails(lambda: load_model(checkpoint), str(file))


def test_pickles_are_never_opened(llada: Path, tmp_path: Path) -> None:
    marker = tmp_path / "UNPICKLED"
    (llada / "model.safetensors").unlink()
    # A pickle that would create the marker when loaded.
    (llada / "pytorch_model.bin").write_bytes(f"cbuiltins\nopen\n(V{marker}\nVw\ntR.".encode())
    fails(lambda: load_model(llada), str(llada), "safetensors")
    assert not marker.exists()


def test_a_tokenizer_without_a_mask_token(tmp_path: Path) -> None:
    special = tuple("<|other|>" if t == "<|mdm_mask|>" else t for t in LLADA_SPECIAL)
    folder = write_llada(tmp_path / "m", special=special, mask_token_id=None)
    fails(lambda: load_tokenizer(folder), str(folder), "mask")


# Published layouts of block-diffusion models and mixtures of experts

BLOCKS = {"llada": None, "lladamoe": None, "llada2_0": 32, "llada2_1": 32, "sdar": 4, "sdar_moe": 4}
FAMILIES = list(BLOCKS)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_published_code_and_saving_keeps_its_tensors(name: str, tmp_path: Path) -> None:
    model, io = load_model(golden(name, tmp_path / name)), golden_io(name)
    torch.testing.assert_close(model(io["full.ids"]), io["full.logits"], rtol=0, atol=1e-4)
    assert io["full.logits"].abs().max() > 10
    save_model(model, tmp_path / "saved")
    same_weights(tmp_path / name, tmp_path / "saved")
    tokenizer = load_tokenizer(tmp_path / name)
    assert (model.block_length, model.mask_id) == (BLOCKS[name], tokenizer.mask_token_id)
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


def test_a_transformers_that_routes_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = golden("llada2_0", tmp_path / "m")
    monkeypatch.setattr("lfpo.models.families.VERSION", "5.5.4")
    fails(lambda: load_model(source), "transformers 5.5.4", "5.6 or later")
    monkeypatch.setattr("lfpo.models.families.VERSION", "5.10.0.dev0")
    load_model(source)


def test_a_rotary_base_where_transformers_5_writes_it_is_read(tmp_path: Path) -> None:
    source = write_dream(tmp_path / "m")
    expected = load_model(source).backbone.config.rope_parameters["rope_theta"]
    config = json.loads((source / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (source / "config.json").write_text(json.dumps(config))
    assert load_model(source).backbone.config.rope_parameters["rope_theta"] == expected != 10000.0


def test_a_rotated_share_where_transformers_5_writes_it_is_read(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 600000, "partial_rotary_factor": 0.5}
    changes = {"rope_theta": None, "partial_rotary_factor": None, "rope_parameters": rope}
    source, ids = golden("llada2_1", tmp_path / "m", **changes), random_ids(1, 9) % 128
    assert torch.equal(load_model(source)(ids), load_model(golden("llada2_1", tmp_path / "old"))(ids))


def test_the_end_of_a_chat_turn_is_eos(tmp_path: Path) -> None:
    """As in SDAR's files: config.json names <|endoftext|>, generation_config.json lists <|im_end|> too."""
    source = golden("sdar", tmp_path / "m")
    assert load_model(source).eos_id == 128
    assert load_model(golden("sdar", tmp_path / "list", eos_token_id=[128, 3])).eos_id == 128
    (source / "generation_config.json").write_text('{"eos_token_id": [129, 128]}')
    model = load_model(source)
    assert (model.eos_id, model.pad_id) == (129, 128)
    save_model(model, tmp_path / "saved")
    assert load_model(tmp_path / "saved").eos_id == 129
    (source / "generation_config.json").write_text('{"eos_token_id": 128}')
    assert load_model(source).eos_id == 128


@pytest.mark.parametrize("layout", ["saved", "trained", "family", "transformers"])
def test_files_that_say_how_a_model_is_used_go_with_it(layout: str, tmp_path: Path) -> None:
    """With a tokenizer and without one, and in both layouts of an export."""
    source, made = golden("sdar", tmp_path / "m"), tmp_path / "made" / "model"
    texts = {"generation_config.json": '{"eos_token_id": [129, 128]}', "modeling_sdar.py": "x = 1\n"}
    texts |= {"preprocessor_config.json": "{}"}
    for name, text in texts.items():
        (source / name).write_text(text)
        (source / name).chmod(0o444)  # as the hub's cache may hold it
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    tokenizer = load_tokenizer(source)
    assert tokenizer.eos_token_id == 128
    if layout == "saved":
        save_model(load_model(source), made)
    elif layout == "trained":
        export_model(made.parent, load_model(source), tokenizer)
        export_model(made.parent, load_model(made), load_tokenizer(made))  # and of a further run
    else:
        assert main(["export", str(source), "--layout", layout, "--output", str(made)]) == 0
    assert load_model(made).eos_id == 129
    kept = {name: text for name, text in texts.items() if layout != "transformers" or name.startswith("generation")}
    assert {name: (made / name).read_text() for name in kept} == kept
    again = load_tokenizer(made)
    assert (again.mask_token_id, again.chat_template["tool_use"]) == (130, "{{ tools }}")
    assert again.eos_token_id == (129 if layout == "transformers" else 128)


@pytest.mark.parametrize("remote", [False, True])
def test_python_files_go_with_a_model_whose_configuration_names_them(remote: bool, llada: Path, tmp_path: Path) -> None:
    config = {k: v for k, v in json.loads((llada / "config.json").read_text()).items() if k != "auto_map"}
    config |= {"auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"}} if remote else {}
    (llada / "config.json").write_text(json.dumps(config))
    (llada / "modeling_llada.py").write_text("x = 1\n")
    export_model(tmp_path, load_model(llada), load_tokenizer(llada))
    assert (tmp_path / "model" / "modeling_llada.py").exists() == remote


def test_an_exported_tokenizer_keeps_the_eos_that_its_chat_template_writes(tmp_path: Path) -> None:
    source = golden("sdar", tmp_path / "m")
    (source / "generation_config.json").write_text('{"eos_token_id": [129, 128]}')
    (source / "chat_template.jinja").write_text("{{ messages[0]['content'] + eos_token }}")
    assert main(["export", str(source), "--layout", "transformers", "--output", str(tmp_path / "made")]) == 0
    assert load_model(tmp_path / "made").eos_id == 129
    assert load_tokenizer(tmp_path / "made").eos_token_id == 128


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
