"""Checkpoints with the published key names, vocabularies and special tokens, but two narrow layers: the 8B path."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

import lfpo.models.tensor_files
import tiny
from lfpo.models import init_model, load_model, save_model
from lfpo.models.layouts import LAYOUTS
from processes import run_lfpo

ROOT = Path(__file__).parents[1]
# fmt: off
NARROW: dict[str, dict[str, Any]] = {
    "llada-8b": {"d_model": 32, "n_layers": 2, "n_heads": 4, "mlp_hidden_size": 64},
    "dream-7b": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "intermediate_size": 64},
}
SPECIAL = {
    "llada-8b": {"<|startoftext|>": 126080, "<|endoftext|>": 126081, "<|mdm_mask|>": 126336,
                 "<|start_header_id|>": 126346, "<|end_header_id|>": 126347, "<|eot_id|>": 126348},
    "dream-7b": {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|mask|>": 151666},
}
# fmt: on
TEMPLATE = {
    "llada-8b": "{{ '<|startoftext|>' }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n",
    "dream-7b": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n",
}
KEYS = {
    "llada-8b": (
        "model.transformer.wte.weight",
        "model.transformer.blocks.1.attn_out.weight",
        "model.transformer.blocks.1.ff_proj.weight",
        "model.transformer.ff_out.weight",
    ),
    "dream-7b": ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.bias", "lm_head.weight"),
}
ARGUMENTS = [
    *("--max_steps", "2", "--prompts_per_iteration", "2", "--num_generations", "2", "--eval_size", "1"),
    *("--optimizer_steps_per_iteration", "1", "--update_tokens", "1024", "--rollout_tokens", "1024", "--threads", "1"),
    *("--sampler.gen_length", "8", "--sampler.block_length", "4", "--sampler.steps", "32", "--save_steps", "2"),
    *(f"--eval_samplers.{name}.{key}=8" for name in ("greedy", "confidence") for key in ("gen_length", "steps")),
    *("--eval_samplers.threshold.gen_length=8", "--learning_rate", "1e-3"),
    *(f"--eval_samplers.{name}.block_length=8" for name in ("greedy", "threshold", "confidence")),
    *("--reward_funcs", "[reward_samples.even_tokens]", "--eval_steps", "2"),
]


def write_checkpoint(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """In shards with an index, as published; returns its keys."""
    config = {**LAYOUTS[layout], **NARROW[layout]}
    vocab = {token: i for i, token in enumerate(tiny.byte_alphabet())}
    named = {i: token for token, i in SPECIAL[layout].items()}
    vocab |= {named.get(i, f"<{i}>"): i for i in range(256, config["vocab_size"])}
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[layout]),
    )
    fast.chat_template = TEMPLATE[layout]
    with monkeypatch.context() as small:
        small.setattr(lfpo.models.tensor_files, "FILE_BYTES", 2**24)
        save_model(init_model(config, seed=0), folder, fast)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert set(KEYS[layout]) <= index["weight_map"].keys()
    return set(index["weight_map"])


def write_gsm8k(folder: Path) -> str:
    rows = [{"question": f"Ann has {n} apples and buys 2. How many?", "answer": f"#### {n + 2}"} for n in range(4)]
    folder.mkdir()
    for split, part in (("train", rows[:3]), ("test", rows[3:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return f"gsm8k@{folder}"


def trains(layout: str, recipe: Path, ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Two iterations with a gradient, and a model that loads under the published names."""
    keys = write_checkpoint(layout, folder / "start", monkeypatch)
    place = ["--model", str(folder / "start"), "--task", write_gsm8k(folder / "gsm8k"), "--output_dir"]
    ended = run_lfpo("train", str(recipe), *place, str(folder / "run"), *ARGUMENTS, *more, ranks=ranks)
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["grad_norm"] > 0 for row in rows[1:])
    assert set(tiny.read_weights(folder / "run" / "model")) == keys
    model, config = load_model(folder / "run" / "model"), LAYOUTS[layout]
    assert (model.vocab_size, model.mask_id) == (config["vocab_size"], config["mask_token_id"])


@pytest.mark.long
def test_the_paper_s_gsm8k_recipe_trains_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = ROOT / "recipes/paper/llada-8b-gsm8k.yaml"
    trains("llada-8b", recipe, 1, tmp_path, monkeypatch, "--lora", "{r: 4, lora_alpha: 8}", "--dtype", "bfloat16")


@pytest.mark.long
def test_a_dream_layout_trains_split_over_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = tmp_path / "recipe.yaml"
    parts = ["models/diffucoder-7b", "algorithms/lfpo", "protocols/paper", "tasks/gsm8k"]
    recipe.write_text(f"include: {json.dumps([str(ROOT / 'recipes' / p) for p in parts])}\n")
    trains("dream-7b", recipe, 2, tmp_path, monkeypatch, "--fsdp", "true")
    assert (tmp_path / "run" / "model" / "model.safetensors.index.json").is_file()
