"""A small random ModernBERT checkpoint in the real layout."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import ModernBertConfig, ModernBertForMaskedLM

from tiny import write_tokenizer

CHARACTERS, WINDOW, WIDTH = 128, 8, 32
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
UNK, CLS, SEP, PAD, MASK = range(CHARACTERS, CHARACTERS + len(SPECIAL))
# As published: written by an early transformers, which had no `layer_types` and `rope_parameters`.
CONFIG: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": CLS,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_pooling": "mean",
    "cls_token_id": CLS,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": SEP,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "layer_norm_eps": 1e-05,
    "local_attention": 2 * WINDOW,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "pad_token_id": PAD,
    "position_embedding_type": "absolute",
    "sep_token_id": SEP,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": CHARACTERS + len(SPECIAL) + 3,  # padded, as published
}


def write_modernbert(folder: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A checkpoint with transformers' weights and a published config.json. changes: its fields."""
    folder.mkdir(parents=True)
    config = {**CONFIG, **changes}
    rng = torch.Generator().manual_seed(0)
    model = ModernBertForMaskedLM(ModernBertConfig(**CONFIG))
    weights = {
        name: ((p.ndim == 1 and not name.endswith("bias")) + 0.2 * torch.randn(p.shape, generator=rng)).to(dtype)
        for name, p in model.named_parameters()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(folder, SPECIAL, characters=CHARACTERS, eos_token="[PAD]", pad_token="[PAD]")
    return folder
