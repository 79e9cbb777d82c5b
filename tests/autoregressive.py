"""Tiny random autoregressive models, written by transformers' own `save_pretrained`, as `lfpo convert` takes them."""

from pathlib import Path
from typing import Any

import torch
import transformers

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


def write_source(folder: Path, name: str = "llama", *, special: tuple[str, ...] = SPECIAL, **changes: Any) -> Path:
    """A model of MODELS with a tokenizer. changes: of its configuration. special: tokens from id 256 on."""
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
    return folder


def causal_logits(model: Any, ids_BL: torch.Tensor) -> torch.Tensor:
    """Logits [B, L, V] of lfpo's model under a causal mask, not shifted."""
    length = ids_BL.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    with torch.no_grad():
        hidden = model.backbone.model(input_ids=ids_BL, attention_mask=mask, use_cache=False).last_hidden_state
        return model.head(hidden)
