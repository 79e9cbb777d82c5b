"""Tiny random autoregressive models, written by transformers' own `save_pretrained`, as `lfpo convert` takes them."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from lfpo.models.convert import GGUF_NAMES
from lfpo.models.family import replace_prefix
from tiny import CHATML, write_tokenizer

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# What the plain models that people hold differ in.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-scaled": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


_made: dict[str, dict[str, bytes]] = {}  # the files of what `write_source` has written, by its arguments


def write_source(folder: Path, name: str = "llama", *, special: tuple[str, ...] = SPECIAL, **changes: Any) -> Path:
    """A model of MODELS with a tokenizer. changes: of its configuration. special: tokens from id 256 on."""
    key = repr((name, special, changes))
    if key not in _made:
        with tempfile.TemporaryDirectory() as scratch:
            _make_source(Path(scratch), name, special, changes)
            _made[key] = {file.name: file.read_bytes() for file in Path(scratch).iterdir()}
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in _made[key].items():
        (folder / file).write_bytes(content)
    return folder


def _make_source(folder: Path, name: str, special: tuple[str, ...], changes: dict[str, Any]) -> None:
    kind, fields = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{"vocab_size": 256 + len(special), **SIZES, **fields, **changes})
    torch.manual_seed(1)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # norms and biases too, and logits that differ
    model.save_pretrained(folder)
    write_tokenizer(folder, special, bos_token="<s>", eos_token="</s>")
    (folder / "chat_template.jinja").write_text(CHATML)


def write_gguf(
    path: Path,
    source: Path,
    *,
    without: str = "no tensor",
    lacks: str | None = None,
    pre: str = "gpt-2",
    roles: bool = True,
    **extra: Any,
) -> Path:
    """A Llama of `write_source` as llama.cpp's converter writes it, with float32 tensors.

    without: a part of the names of tensors that are left out. lacks: a field that is left out. pre: the name of the
    split of text. roles: whether the file says of which types tokens are. extra: tensors (arrays) and fields (numbers)
    to add, with "__" for "." in their names."""
    import gguf
    import numpy as np

    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    config, writer = model.config, gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    read = json.loads((source / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in read["added_tokens"]}
    words = sorted({**read["model"]["vocab"], **special}.items(), key=lambda pair: pair[1])
    texts = [text for text, _ in words]
    texts[1:3] = ["ab", "cd"]  # transformers' reader wants merges
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    if roles:
        writer.add_token_types([3 if text in special else 1 for text in texts])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(special["<s>"])
    writer.add_eos_token_id(special["</s>"])
    names = {new: old for old, new in GGUF_NAMES}
    for name, weight in model.state_dict().items():
        array = weight.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:  # llama.cpp has the two halves of a head's rotary pairs beside each other
                halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        own = replace_prefix(name, names.items())
        if without not in own:
            writer.add_tensor(own, np.ascontiguousarray(array))
    for name, value in extra.items():
        own = name.replace("__", ".")
        if isinstance(value, np.ndarray):
            writer.add_tensor(own, value)
        elif isinstance(value, int):
            writer.add_uint32(own, value)
        else:
            writer.add_float32(own, value)
    if lacks is not None:
        del writer.kv_data[0][lacks]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def causal_logits(model: Any, ids_BL: torch.Tensor) -> torch.Tensor:
    """Logits [B, L, V] of lfpo's model under a causal mask, not shifted."""
    length = ids_BL.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        hidden = model.backbone.model(input_ids=ids_BL, attention_mask=mask, use_cache=False).last_hidden_state
        return model.head(hidden)
