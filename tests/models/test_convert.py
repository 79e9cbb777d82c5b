"""`lfpo convert`: exact weights, the mask token, what is kept, and one sentence for each source that it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from autoregressive import MODELS, SPECIAL, VOCAB, causal_logits, write_gguf, write_source
from lfpo.cli.command_line import main
from lfpo.core.doubled import training_structure
from lfpo.models import load_model, load_tokenizer, save_model
from lfpo.models import tensor_files as files_module
from lfpo.models.convert import LLAMA3_ROPE
from lfpo.models.gguf_tokenizer import known_splits
from lfpo.models.mask_token import MASK
from tiny import CHATML, random_ids


def convert(source: Path, folder: Path, *more: str) -> Path:
    assert main(["convert", str(source), str(folder), *more]) == 0
    return folder


def refused(capsys: pytest.CaptureFixture[str], source: Any, folder: Path, *more: str) -> str:
    capsys.readouterr()  # transformers' progress bars
    assert main(["convert", str(source), str(folder), *more]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def change(folder: Path, **fields: Any) -> Path:
    """Write fields into a folder's config.json; None removes one."""
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in {**config, **fields}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_under_a_causal_mask_the_logits_are_those_of_the_source(name: str, tmp_path: Path):
    source = write_source(tmp_path / "source", name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source)
    model = load_model(convert(source, tmp_path / "made"))
    ids = random_ids(2, 20)
    with torch.no_grad():
        expected = theirs(ids).logits
    found = causal_logits(model, ids)
    assert found.shape[-1] == VOCAB + 1, "no token of this tokenizer is unused, so there is a new row"
    torch.testing.assert_close(found[..., :VOCAB], expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.5, "logits that differ from each other"


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_every_weight_is_kept_bit_for_bit_and_the_mask_starts_as_the_mean(name: str, tmp_path: Path):
    source = write_source(tmp_path / "source", name)
    old = load_file(source / "model.safetensors")
    new = load_file(convert(source, tmp_path / "made") / "model.safetensors")
    assert new.keys() == old.keys()
    for key, weight in old.items():
        table = key in ("model.embed_tokens.weight", "lm_head.weight")
        assert torch.equal(new[key][: len(weight)], weight)
        assert len(new[key]) == len(weight) + table
        if table:
            torch.testing.assert_close(new[key][-1], weight.double().mean(0).float())


def test_logits_at_a_position_predict_the_next_token_unless_shift_is_off(tmp_path: Path):
    source = write_source(tmp_path / "source")
    shifted = load_model(convert(source, tmp_path / "a"))
    plain = load_model(convert(source, tmp_path / "b", "--shift", "false"))
    ids = random_ids(1, 9)
    torch.testing.assert_close(shifted(ids)[:, 1:], plain(ids)[:, :-1])
    assert (shifted.family.shift, plain.family.shift) == (True, False)


def test_blocks_are_written_and_attended_to(tmp_path: Path):
    model = load_model(convert(write_source(tmp_path / "source"), tmp_path / "made", "--block_length", "4"))
    assert model.block_length == 4
    ids, other = random_ids(1, 12), random_ids(1, 12)
    other[:, 8:] = (other[:, 8:] + 1) % 256
    structure = type(training_structure(model))(4)
    first, second = (model.hidden(x, structure=structure) for x in (ids, other))
    torch.testing.assert_close(first[:, :8], second[:, :8])
    assert not torch.allclose(first[:, 9:], second[:, 9:])


@pytest.mark.parametrize(
    ("special", "rows", "expected"),
    [
        (SPECIAL, VOCAB, (VOCAB, VOCAB + 1, "a new row")),
        (SPECIAL, VOCAB + 8, (VOCAB, VOCAB + 8, "an unused row")),
        ((*SPECIAL, "<|reserved_special_token_3|>"), VOCAB + 1, (VOCAB, VOCAB + 1, "<|reserved_special_token_3|>")),
        (("<s>", "</s>", "<unused0>"), 259, (258, 259, "<unused0>")),
        ((*SPECIAL, MASK), VOCAB + 1, (VOCAB, VOCAB + 1, "a token of the vocabulary")),
    ],
)
def test_the_mask_token_takes_an_unused_place_before_a_new_row(
    special: tuple[str, ...], rows: int, expected: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    number, new_rows, about = expected
    source = write_source(tmp_path / "source", special=special, vocab_size=rows)
    folder = convert(source, tmp_path / "made")
    printed = capsys.readouterr().out.splitlines()[0]
    assert f"{MASK} (id {number})" in printed
    assert about in printed
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert (model.mask_id, model.vocab_size) == (number, new_rows)
    assert tokenizer.mask_token == MASK
    # dllm's loader adds a token of this text, which must not be a further one.
    again = transformers.AutoTokenizer.from_pretrained(folder)
    assert again.add_special_tokens({"mask_token": MASK}) == 0
    assert again.mask_token_id == number
    before = transformers.AutoTokenizer.from_pretrained(source)
    text = "What is 3 + 4?</s> é"
    assert again.encode(text) == before.encode(text)


def test_a_mask_token_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_source(tmp_path / "source")
    folder = convert(source, tmp_path / "a", "--mask_token", "<|im_start|>")
    assert load_model(folder).mask_id == 258
    assert load_model(convert(source, tmp_path / "b", "--mask_token", "[M]")).mask_id == VOCAB
    assert "already" in refused(capsys, source, tmp_path / "c", "--mask_token", "</s>")
    assert not (tmp_path / "c").exists()


def test_chat_template_and_special_tokens_are_kept(tmp_path: Path):
    special = (*SPECIAL, "<|reserved_special_token_0|>")
    folder = convert(write_source(tmp_path / "source", special=special), tmp_path / "made")
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    assert tokenizer.chat_template == CHATML
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert (model.eos_id, model.pad_id) == (257, 257)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert tokenizer.decode(tokenizer.encode(said)) == said


def test_a_converted_model_is_saved_and_loaded_bit_for_bit(tmp_path: Path):
    folder = convert(write_source(tmp_path / "source", "qwen2"), tmp_path / "made", "--block_length", "8")
    model = load_model(folder)
    save_model(model, tmp_path / "again")
    again = load_model(tmp_path / "again")
    assert again.config == model.config
    ids = random_ids(2, 16)
    assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(("name", "class_name"), [("llama", "Llama"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3")])
def test_classes_of_transformers_read_the_folder_and_attend_to_all_tokens(name: str, class_name: str, tmp_path: Path):
    folder = convert(write_source(tmp_path / "source", name), tmp_path / "made", "--shift", "false")
    theirs = getattr(transformers, f"{class_name}ForCausalLM").from_pretrained(folder)
    ids = random_ids(2, 12)
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, load_model(folder)(ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_folder_has_the_names_of_dllms_classes(name: str, tmp_path: Path):
    config = json.loads(
        (convert(write_source(tmp_path / "source", name), tmp_path / "made") / "config.json").read_text()
    )
    assert config["model_type"] == f"a2d-{name}"
    assert config["architectures"] == [f"A2D{name.capitalize()}LMHeadModel"]
    assert config["mask_token_id"] == VOCAB
    assert "auto_map" not in config


def test_bfloat16_stays_and_can_be_asked_for(tmp_path: Path):
    source = write_source(tmp_path / "source")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.save_pretrained(source)
    kept = load_file(convert(source, tmp_path / "a") / "model.safetensors")
    assert {weight.dtype for weight in kept.values()} == {torch.bfloat16}
    wide = load_file(convert(source, tmp_path / "b", "--dtype", "float32") / "model.safetensors")
    assert torch.equal(wide["model.norm.weight"], kept["model.norm.weight"].float())


def test_a_saved_model_names_the_dtype_of_its_weights(tmp_path: Path):
    """Of a bfloat16 source that is held in float32; the older name of the field too."""
    source = write_source(tmp_path / "source")
    transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    folder = change(convert(source, tmp_path / "made"), torch_dtype="bfloat16")
    model = load_model(folder)
    with torch.no_grad():
        model.backbone.model.norm.weight += 1e-4  # bfloat16 rounds it away
    save_model(model, tmp_path / "saved", load_tokenizer(folder))
    config = json.loads((tmp_path / "saved/config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("float32", "float32")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(theirs.model.norm.weight, model.backbone.model.norm.weight)
    save_model(load_model(folder, dtype=torch.bfloat16), tmp_path / "narrow")
    assert json.loads((tmp_path / "narrow/config.json").read_text())["dtype"] == "bfloat16"


def test_shards_are_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_source(tmp_path / "source")
    whole = load_model(convert(source, tmp_path / "whole"))
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    (source / "model.safetensors").unlink()
    model.save_pretrained(source, max_shard_size="40KB")
    assert len(list(source.glob("*.safetensors"))) > 2
    monkeypatch.setattr(files_module, "FILE_BYTES", 50_000)
    folder = convert(source, tmp_path / "made")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    ids = random_ids(1, 8)
    assert torch.equal(load_model(folder)(ids), whole(ids))


def test_old_checkpoints_hold_inv_freq_which_is_dropped(tmp_path: Path):
    source = write_source(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    assert load_model(convert(source, tmp_path / "made")).vocab_size == VOCAB + 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "model_type 'bert'"),
        ({"model_type": "qwen3_moe", "num_experts": 8}, "model_type 'qwen3_moe'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"model_type": "a2d-llama"}, "already"),
        ({"is_causal": False, "logit_shift": 0}, "already"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_each_source_that_is_no_plain_language_model_is_one_sentence(
    fields: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = change(write_source(tmp_path / "source"), **fields)
    said = refused(capsys, source, tmp_path / "made")
    assert expected in said
    assert "config.json" in said
    assert not (tmp_path / "made").exists()


def test_missing_files_and_a_taken_folder_are_one_sentence_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_source(tmp_path / "source")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("kept")
    assert "not empty" in refused(capsys, source, taken)
    assert (taken / "notes.txt").read_text() == "kept"
    (source / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refused(capsys, source, tmp_path / "made")
    (source / "model.safetensors").unlink()
    assert "no model.safetensors" in refused(capsys, source, tmp_path / "made")
    (source / "config.json").unlink()
    assert "config.json: missing" in refused(capsys, source, tmp_path / "made")
    assert "no such folder" in refused(capsys, tmp_path / "none.gguf", tmp_path / "made")
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_a_gguf_file_becomes_the_same_model(tmp_path: Path):
    source = write_source(tmp_path / "source")
    model = load_model(convert(write_gguf(tmp_path / "model.gguf", source), tmp_path / "made"))
    ids = random_ids(2, 20)
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(source)(ids).logits
    torch.testing.assert_close(causal_logits(model, ids)[..., :VOCAB], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("roles", [True, False])
def test_the_tokens_of_a_gguf_file_are_its_own(roles: bool, tmp_path: Path):
    """No token of GPT-2's is added, and special tokens keep their text where the byte alphabet lacks a character."""
    special = (*SPECIAL, "<end▁of▁turn>")
    source = write_source(tmp_path / "source", special=special)
    folder = convert(write_gguf(tmp_path / "model.gguf", source, roles=roles), tmp_path / "made")
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert (len(tokenizer), model.vocab_size, model.mask_id) == (262, 262, 261)
    assert (tokenizer.bos_token_id, model.eos_id, model.pad_id) == (256, 257, 257)
    assert tokenizer.unk_token is None
    assert len(tokenizer.encode("<|endoftext|>")) == 13
    assert tokenizer.encode("</s>") == [257]
    if roles:
        assert tokenizer.encode("<|im_end|><end▁of▁turn>") == [259, 260]
    ids = transformers.AutoTokenizer.from_pretrained(source).encode("3 plain words?")
    assert tokenizer.encode("3 plain words?") == ids


def test_ids_that_a_gguf_file_does_not_name_are_not_those_of_other_models(tmp_path: Path):
    path = write_gguf(tmp_path / "model.gguf", write_source(tmp_path / "source"), lacks="tokenizer.ggml.bos_token_id")
    config = json.loads((convert(path, tmp_path / "made") / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (None, 257)


@pytest.mark.parametrize(
    "field",
    [
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.model",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_a_gguf_file_without_a_field_is_refused(field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_gguf(tmp_path / "model.gguf", write_source(tmp_path / "source"), lacks=field)
    assert f"{path}: the field '{field}' is missing" in refused(capsys, path, tmp_path / "made")


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", "Ċ Ċ 3 Ġapples Ġand Ġ12"),
        ("smollm", "ĊĊ 3 Ġapples Ġand Ġ 1 2"),
        ("starcoder", "ĊĊ 3 Ġapples Ġand Ġ 1 2"),
        ("llama-bpe", "ĊĊ 3 Ġapples Ġand Ġ 12"),
        ("qwen2", "ĊĊ 3 Ġapples Ġand Ġ 1 2"),
    ],
)
def test_text_is_split_as_a_gguf_file_says(pre: str, expected: str, tmp_path: Path):
    if pre in ("llama-bpe", "qwen2") and pre not in known_splits():
        pytest.skip("this version of transformers does not know the split")
    source = write_source(tmp_path / "source")
    folder = convert(write_gguf(tmp_path / "model.gguf", source, pre=pre), tmp_path / "made")
    for tokenizer in (load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)):
        split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("\n\n3 apples and 12")
        assert [word for word, _ in split] == expected.split()


@pytest.mark.parametrize("pre", ["deepseek-coder", "default", None])
def test_a_split_that_is_not_known_is_refused(pre: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    how: dict[str, Any] = {"lacks": "tokenizer.ggml.pre"} if pre is None else {"pre": pre}
    path = write_gguf(tmp_path / "model.gguf", write_source(tmp_path / "source"), **how)
    said = refused(capsys, path, tmp_path / "made")
    assert f"tokenizer.ggml.pre {pre!r} is a split of text that lfpo does not know" in said


@pytest.mark.parametrize("factor", [8.0, 32.0])  # of Llama 3.1 and 3.2
def test_the_scaled_rotary_embeddings_of_llama_3_are_read_from_gguf(factor: float, tmp_path: Path):
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, **LLAMA3_ROPE}
    source = write_source(tmp_path / "source", hidden_size=128, num_attention_heads=2, rope_parameters=rope)
    # As llama.cpp's converter computes them.
    wavelengths = 2 * numpy.pi * 500000.0 ** (numpy.arange(0, 64, 2) / 64)
    smooth = (8192 / wavelengths - 1) / (4 - 1)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = numpy.where(wavelengths < 8192 / 4, 1, numpy.where(wavelengths > 8192, factor, between))
    assert len(set(factors)) > 4
    path = write_gguf(tmp_path / "model.gguf", source, rope_freqs__weight=factors.astype("float32"))
    model = load_model(convert(path, tmp_path / "made"))
    ids = random_ids(2, 60)
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(source)(ids).logits
    torch.testing.assert_close(causal_logits(model, ids)[..., :VOCAB], expected, rtol=0, atol=1e-5)
    plain = change(source, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    with torch.no_grad():
        unscaled = transformers.AutoModelForCausalLM.from_pretrained(plain)(ids).logits
    assert (unscaled - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("without", "extra", "expected"),
    [
        ("blk.1.", {}, "9 tensors are missing, first 'model.layers.1"),
        ("output_norm", {}, "model.norm.weight"),
        ("-", {"rope_freqs__weight": numpy.array([1, 2, 4, 8], "float32")}, "rope_freqs.weight"),
        ("-", {"rope_freqs__weight": numpy.ones(8, "float32")}, "rope_freqs.weight"),  # for heads of another size
        ("-", {"blk__0__attn_q__bias": numpy.ones(32, "float32")}, "blk.0.attn_q.bias"),
        ("ffn_up", {"blk__0__ffn_up_exps__weight": numpy.ones((2, 48, 32), "float32")}, "mlp.up_proj"),
        ("-", {"llama__rope__scaling__factor": 4.0}, "llama.rope.scaling.factor"),
        ("-", {"llama__rope__scale_linear": 4.0}, "llama.rope.scale_linear"),
    ],
)
def test_a_gguf_file_that_would_be_read_in_part_is_refused(
    without: str, extra: dict[str, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write_gguf(tmp_path / "model.gguf", write_source(tmp_path / "source"), without=without, **extra)
    assert expected in refused(capsys, path, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_head_that_differs_from_the_embeddings_it_is_tied_to_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = change(write_source(tmp_path / "source"), tie_word_embeddings=True)
    said = refused(capsys, source, tmp_path / "made")
    assert (
        "lm_head.weight differs from model.embed_tokens.weight" in said and "set tie_word_embeddings to false" in said
    )
    weights = load_file(source / "model.safetensors")
    same = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    save_file(same, source / "model.safetensors", {"format": "pt"})
    assert "lm_head.weight" not in load_file(convert(source, tmp_path / "made") / "model.safetensors")


def test_of_several_sets_of_weights_the_one_that_transformers_reads_is_taken(tmp_path: Path):
    source = write_source(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    old = {name: weight + 1 for name, weight in weights.items()}
    save_file(old, source / "model-00001-of-00001.safetensors", {"format": "pt"})
    index = {"weight_map": dict.fromkeys(old, "model-00001-of-00001.safetensors")}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    made = load_file(convert(source, tmp_path / "made") / "model.safetensors")
    assert torch.equal(made["model.norm.weight"], weights["model.norm.weight"])
    (source / "model.safetensors").unlink()
    made = load_file(convert(source, tmp_path / "indexed") / "model.safetensors")
    assert torch.equal(made["model.norm.weight"], old["model.norm.weight"])


def test_a_folder_that_is_a_link_or_the_current_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write_source(tmp_path / "source")
    for name in ("far", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    load_model(convert(source, tmp_path / "link"))
    assert (tmp_path / "far/config.json").exists() and (tmp_path / "link").is_symlink()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "here")
        load_model(convert(source, Path(".")))
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_tokens_that_were_added_without_embeddings_get_some(tmp_path: Path):
    source = write_source(tmp_path / "source", special=(*SPECIAL, "<|reserved_special_token_0|>", "[PAD]"))
    weights = load_file(source / "model.safetensors")
    short = {k: w[: VOCAB + 1].clone() if len(w) == VOCAB + 2 else w for k, w in weights.items()}
    save_file(short, source / "model.safetensors", {"format": "pt"})
    change(source, vocab_size=VOCAB + 1)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "[PAD]"}))
    model = load_model(convert(source, tmp_path / "made"))
    assert (model.mask_id, model.pad_id, model.vocab_size) == (VOCAB, VOCAB + 1, VOCAB + 2)


def test_the_end_of_a_chat_turn_is_kept(tmp_path: Path):
    source = write_source(tmp_path / "source", "qwen2")
    (source / "generation_config.json").write_text('{"eos_token_id": [259, 257]}')
    assert load_model(convert(source, tmp_path / "made")).eos_id == 259


@pytest.mark.parametrize("ends", [[257, 260], [260, 257], 260, [257], 257])
def test_every_end_that_a_configuration_names_is_kept(ends: Any, tmp_path: Path):
    """A Llama whose config.json alone lists the end of a turn. The tokenizer's end comes first."""
    source = change(write_source(tmp_path / "source", special=(*SPECIAL, "<|eot_id|>")), eos_token_id=ends)
    folder = convert(source, tmp_path / "made")
    both = ends not in (257, [257])
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == ([257, 260] if both else 257)
    assert load_model(folder).eos_id == (260 if both else 257)


@pytest.mark.parametrize("end", [257, 260])
def test_the_end_of_a_chat_turn_in_a_gguf_file_is_kept(end: int, tmp_path: Path):
    source = write_source(tmp_path / "source", special=(*SPECIAL, "<|eot_id|>"))
    path = write_gguf(tmp_path / "model.gguf", source, tokenizer__ggml__eot_token_id=end)
    assert load_model(convert(path, tmp_path / "made")).eos_id == end


def test_transformers_4_knows_the_class_of_the_tokenizer(tmp_path: Path):
    folder = convert(write_source(tmp_path / "source"), tmp_path / "made")
    save_model(load_model(folder), tmp_path / "saved", load_tokenizer(folder))
    for made in (folder, tmp_path / "saved"):
        settings = json.loads((made / "tokenizer_config.json").read_text())
        assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_ids_with_gaps_and_a_mask_that_is_the_end_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write_source(tmp_path / "source")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": "</s>"}))
    assert load_model(convert(source, tmp_path / "end")).mask_id == VOCAB
    words = json.loads((source / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in words["added_tokens"]} | {"zzz": VOCAB}
    del vocabulary["z"]  # the next token gets the number of tokens as its id, which is that of "zzz"
    (source / "tokenizer.json").write_text(json.dumps(words))
    assert "ids have gaps" in refused(capsys, source, tmp_path / "gaps")


def test_a_plain_model_is_refused_elsewhere_with_the_command_that_converts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = write_source(tmp_path / "source", "qwen3")
    assert main(["sample", "--model", str(source), "--prompt", "hi"]) == 2
    assert "lfpo convert" in capsys.readouterr().err
