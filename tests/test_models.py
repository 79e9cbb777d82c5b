import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from lfpo.base.errors import UserError
from lfpo.models import init_model, load_model, load_tokenizer, save_model
from tiny import (
    LLADA_CONFIG,
    LLADA_SPECIAL,
    MAX_LENGTH,
    random_ids,
    read_weights,
    reference_logits,
    rotate,
    write_dream,
    write_llada,
)


def fails(call, *names: str) -> None:
    """The call raises a one-line UserError that contains every name."""
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for name in names:
        assert name in text, text


# Logits


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 1}])
def test_llada_equals_an_independent_forward(changes: dict[str, Any], tmp_path: Path) -> None:
    folder, ids = write_llada(tmp_path / "llada", **changes), random_ids(3, 21)
    close(load_model(folder)(ids), reference_logits(folder, ids))


@torch.no_grad()
def test_dream_equals_an_independent_forward_shifted_by_one(dream: Path) -> None:
    ids = random_ids(3, 21)
    expected = reference_logits(dream, ids)
    logits = load_model(dream)(ids)
    close(logits[:, 1:], expected[:, :-1])
    assert (logits[:, 1:] - expected[:, 1:]).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize(("write", "field"), [(write_llada, "weight_tying"), (write_dream, "tie_word_embeddings")])
def test_tied_weights(tmp_path: Path, write, field: str) -> None:
    folder = write(tmp_path / "tied", **{field: True})
    model = load_model(folder)
    assert model.backbone.lm_head.weight is model.backbone.model.embed_tokens.weight
    ids = random_ids(2, 9)
    shift = int(model.family.shift)
    close(model(ids)[:, shift:], reference_logits(folder, ids)[:, : 9 - shift])
    save_model(model, tmp_path / "saved")
    assert read_weights(tmp_path / "saved").keys() == read_weights(folder).keys()
    assert torch.equal(load_model(tmp_path / "saved")(ids), model(ids))


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
def test_positions_index_the_full_logits(checkpoint: Path) -> None:
    model = load_model(checkpoint)
    ids, mask = random_ids(3, 11), torch.ones(3, 11, dtype=torch.long)
    mask[1, :4] = 0
    wanted = torch.rand(3, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    close(model(ids, mask, wanted), model(ids, mask)[wanted])


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
        exact = rotate(raw.double(), theta, torch.float64)
        rounded = rotate(raw, theta, torch.bfloat16)
        ours, stock = ((x.double() - exact).square().mean().sqrt() for x in (got, rounded))
        assert ours < 0.75 * stock


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
    before, after = read_weights(checkpoint), read_weights(saved)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert json.loads((saved / "config.json").read_text()) == json.loads((checkpoint / "config.json").read_text())
    ids = random_ids(2, 9)
    assert torch.equal(load_model(saved)(ids), model(ids))
    text = "ab 12<|mask|><|mdm_mask|>"
    assert load_tokenizer(saved).encode(text) == load_tokenizer(checkpoint).encode(text)
    assert not (checkpoint / "IMPORTED").exists()


@torch.no_grad()
def test_shards_give_the_same_model_and_files_the_index_does_not_name_are_not_read(
    llada: Path, llada_sharded: Path, tmp_path: Path
) -> None:
    assert len(list(llada_sharded.glob("*.safetensors"))) == 3
    save_file({"adapter": torch.zeros(1)}, llada_sharded / "adapter.safetensors")
    ids = random_ids(2, 9)
    model = load_model(llada_sharded)
    assert torch.equal(model(ids), load_model(llada)(ids))
    save_model(model, tmp_path / "saved")
    assert torch.equal(load_model(tmp_path / "saved")(ids), model(ids))


# Fresh models


def test_init_is_decided_by_its_seed() -> None:
    one, same, other = (init_model(LLADA_CONFIG, seed=s).state_dict() for s in (3, 3, 4))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)
    assert one["backbone.lm_head.weight"].std() == pytest.approx(0.02, rel=0.1)


def test_init_names_a_missing_field() -> None:
    config = {k: v for k, v in LLADA_CONFIG.items() if k != "n_layers"}
    fails(lambda: init_model(config, seed=0), "init config", "n_layers")


# Errors


def test_a_folder_or_config_that_is_missing(tmp_path: Path) -> None:
    fails(lambda: load_model(tmp_path / "nowhere"), str(tmp_path / "nowhere"))
    fails(lambda: load_model("nobody/nothing-here"), "nobody/nothing-here", "hub")
    fails(lambda: load_model(tmp_path), str(tmp_path / "config.json"))


@pytest.mark.parametrize("text", ['{"model_type": ', "[]", "\xff"])
def test_corrupt_config(llada: Path, text: str) -> None:
    (llada / "config.json").write_bytes(text.encode("latin-1"))
    fails(lambda: load_model(llada), str(llada / "config.json"), "JSON")


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("model_type", "gpt2", ("'gpt2'", "llada", "Dream")),
        ("block_type", "sequential", ("sequential",)),
        ("mask_token_id", 126336, ("126336",)),
        ("d_model", ..., ("d_model",)),  # missing
    ],
)
def test_a_config_that_is_not_supported(llada: Path, key: str, value: Any, names: tuple[str, ...]) -> None:
    config = json.loads((llada / "config.json").read_text())
    config = {k: v for k, v in {**config, key: value}.items() if v is not ...}
    (llada / "config.json").write_text(json.dumps(config))
    fails(lambda: load_model(llada), *names)


@pytest.mark.parametrize("keep", [0, 4, 100, 20_000])
def test_truncated_weights(checkpoint: Path, keep: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    fails(lambda: load_model(checkpoint), str(file))


UP = "model.transformer.blocks.1.up_proj.weight"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({UP: None}, UP),
        ({UP.replace(".1.", ".7."): torch.zeros(2)}, "blocks.7"),
        ({UP: torch.zeros(5, 5)}, "[5, 5]"),
    ],
    ids=["missing", "extra", "shape"],
)
def test_tensors_that_do_not_match_the_config(llada: Path, changes: dict[str, Any], said: str) -> None:
    file = llada / "model.safetensors"
    weights = {name: tensor for name, tensor in {**load_file(file), **changes}.items() if tensor is not None}
    save_file(weights, file)
    fails(lambda: load_model(llada), str(llada), said)


def test_a_missing_shard(llada_sharded: Path) -> None:
    name = "model-00002-of-00003.safetensors"
    (llada_sharded / name).unlink()
    fails(lambda: load_model(llada_sharded), str(llada_sharded), name)


def test_pickles_are_never_opened(llada: Path, tmp_path: Path) -> None:
    marker = tmp_path / "UNPICKLED"
    (llada / "model.safetensors").unlink()
    # A pickle that would create the marker when loaded.
    (llada / "pytorch_model.bin").write_bytes(f"cbuiltins\nopen\n(V{marker}\nVw\ntR.".encode())
    fails(lambda: load_model(llada), str(llada), "safetensors")
    assert not marker.exists()


def test_a_tokenizer_without_a_mask_token(tmp_path: Path) -> None:
    special = tuple("<|other|>" if t == "<|mdm_mask|>" else t for t in LLADA_SPECIAL)
    folder = write_llada(tmp_path / "m", special=special)
    fails(lambda: load_tokenizer(folder), str(folder), "mask")


@pytest.mark.parametrize("text", ["{", '{"model": {"type": "None"}}', ""])
def test_a_corrupt_tokenizer(llada: Path, text: str) -> None:
    (llada / "tokenizer.json").write_text(text)
    fails(lambda: load_tokenizer(llada), str(llada))
