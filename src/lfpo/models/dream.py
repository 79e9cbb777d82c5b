"""Dream and DiffuCoder: a Qwen2 with full attention whose logits are shifted: position i predicts token i + 1.

Checkpoint keys already have Qwen2's names. The published tokenizer class is remote code over Qwen2's vocabulary files,
which transformers' own Qwen2 tokenizer reads.
"""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config

from lfpo.models.family import Family


def hf_config(config: dict[str, Any]) -> Qwen2Config:
    """Dream's config.json as a Qwen2Config. Raises KeyError for a missing field."""
    return Qwen2Config(
        hidden_size=config["hidden_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        rms_norm_eps=config["rms_norm_eps"],
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        pad_token_id=None,  # as for LLaDA: pad is EOS, whose embedding must be trained
    )


DREAM = Family(
    name="dream",
    model_types=("Dream", "dream", "DiffuCoder"),
    architecture="Qwen2ForCausalLM",
    hf_config=hf_config,
    shift=True,
    mask_token="<|mask|>",
    tokenizer_class="Qwen2TokenizerFast",
)
