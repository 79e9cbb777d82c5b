"""SDAR and TraDo, dense: a Qwen3 with Qwen3's own key names, trained by block diffusion. A token attends to its own
block and to the blocks before it. Logits at position i predict token i, although the models grew from autoregressive
ones.

The published RMSNorm multiplies by its weight before it rounds, Qwen3's afterwards: the same in float32, not in
bfloat16.
"""

from __future__ import annotations

from typing import Any

from transformers import Qwen3Config

from lfpo.models.family import Family

BLOCK = 4  # of every published checkpoint; those with experts do not name it in config.json


def hf_config(config: dict[str, Any]) -> Qwen3Config:
    """SDAR's config.json as a Qwen3Config. Raises KeyError for a missing field."""
    return Qwen3Config(
        hidden_size=config["hidden_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        rms_norm_eps=config["rms_norm_eps"],
        attention_bias=bool(config.get("attention_bias")),
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        pad_token_id=None,  # as for LLaDA: pad is EOS, whose embedding must be trained
    )


SDAR = Family(
    name="sdar",
    model_types=("sdar",),
    architecture="Qwen3ForCausalLM",
    hf_config=hf_config,
    mask_token="<|MASK|>",
    tokenizer_class="Qwen2TokenizerFast",
    block_key="block_size",
    block_default=BLOCK,
)
