"""What config.json of a published checkpoint does not say, or its tokenizer says in vain: the token that ends its
completions, how long its blocks are, and blanks that decoding would lose."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from golden_families import golden
from lfpo.cli.command_line import main
from lfpo.models import load_model, load_tokenizer, save_model
from lfpo.models.loading import save_tokenizer, trained_block_length
from tiny import DREAM_SPECIAL, FLAGS, write_dream, write_llada

PADDING = "<|dlm_pad|>"


def write_diffucoder(folder: Path, **changes: Any) -> Path:
    """A Dream checkpoint whose tokenizer has DiffuCoder's padding behind Dream's tokens."""
    write_dream(folder, **changes)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["added_tokens_decoder"][str(258 + len(DREAM_SPECIAL))] = {"content": PADDING, **FLAGS}
    file.write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kept", ["source", "saved", "transformers"])
def test_diffucoder_ends_with_its_own_padding(kept: str, tmp_path: Path):
    """Not with <|endoftext|>, which config.json and generation_config.json name."""
    folder, ends = write_diffucoder(tmp_path / "source"), json.dumps({"eos_token_id": 258, "pad_token_id": 258})
    (folder / "generation_config.json").write_text(ends)
    if kept == "saved":
        save_model(load_model(folder), tmp_path / "made", load_tokenizer(folder))
    elif kept == "transformers":
        assert main(["export", str(folder), "--layout", kept, "--output", str(tmp_path / "made")]) == 0
    folder = folder if kept == "source" else tmp_path / "made"
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert (model.eos_id, model.pad_id) == (tokenizer.convert_tokens_to_ids(PADDING),) * 2
    assert tokenizer.convert_ids_to_tokens(model.mask_id) == "<|mask|>"


def test_dream_needs_no_tokenizer_files_where_config_json_names_all_ids(tmp_path: Path):
    save_model(load_model(write_diffucoder(tmp_path / "m")), tmp_path / "weights")
    assert load_model(tmp_path / "weights").eos_id == 258 + len(DREAM_SPECIAL)


def test_dream_ends_with_what_config_json_names(tmp_path: Path):
    model = load_model(write_dream(tmp_path / "m", pad_token_id=260))
    assert (model.eos_id, model.pad_id) == (258, 260)


@pytest.mark.parametrize(
    ("kind", "name", "block_size", "length"),
    [
        ("sdar_moe", "SDAR-30B-A3B-Chat-b32", None, 32),
        ("sdar_moe", "SDAR-30B-A3B-Sci", None, 4),
        ("sdar", "SDAR-1.7B-Chat-b8", None, 8),
        ("sdar", "MBD-SDAR-4B-Chat-b16-math", None, 16),
        ("sdar", "SDAR-8B-Chat-b64", 16, 16),
        ("sdar", "SDAR-8B-Chat-b32_sft", None, 32),
        ("sdar", "study-b32", None, 4),
    ],
)
def test_the_name_of_sdar_says_how_long_a_block_is(
    kind: str, name: str, block_size: int | None, length: int, tmp_path: Path
):
    """Where config.json does not; in what is saved of it config.json does, in a folder of any name."""
    folder, made = golden(kind, tmp_path / name, block_size=block_size), tmp_path / "SDAR-made-b2"
    model = load_model(folder)
    assert model.block_length == trained_block_length(folder) == length
    save_model(model, made)
    assert trained_block_length(made) == length


@pytest.mark.parametrize("write", [write_llada, write_dream])
def test_blanks_before_punctuation_are_kept(write: Any, tmp_path: Path):
    """ModernBERT's and Llama 3's tokenizers ask for a rule that takes them out. Older versions of transformers follow
    it, as this one does with the second field."""
    file = write(tmp_path / "m") / "tokenizer_config.json"
    asked = ("clean_up_tokenization_spaces", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
    settings = json.loads(file.read_text(encoding="utf-8")) | dict.fromkeys(asked, True)
    file.write_text(json.dumps(settings), encoding="utf-8")
    tokenizer, text = load_tokenizer(tmp_path / "m"), "[1 , 2] != 'x' . it 's"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").decode(tokenizer.encode(text)) == text
