"""LLaDA: a Llama with renamed keys and full (bidirectional) attention. Logits at position i predict token i.

Logits equal those of the published modelling code exactly: in float32, and in bfloat16 with the rotary embedding in
float32 (`rope_full_precision`), as in `lfpo.models.attention`.
"""

from typing import Any

from transformers import LlamaConfig

from lfpo.base.errors import UserError
from lfpo.models.family import Family


def hf_config(config: dict[str, Any]) -> LlamaConfig:
    """LLaDA's config.json as a LlamaConfig. `embedding_size` (padded rows), when set, replaces `vocab_size`.

    Raises KeyError for a missing field and UserError for an unsupported block_type.
    """
    if config.get("block_type", "llama") != "llama":
        raise UserError(f"config.json: block_type {config['block_type']!r} is not supported, expected 'llama'")
    return LlamaConfig(
        hidden_size=config["d_model"],
        num_hidden_layers=config["n_layers"],
        num_attention_heads=config["n_heads"],
        num_key_value_heads=config.get("n_kv_heads") or config["n_heads"],
        intermediate_size=config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        vocab_size=config.get("embedding_size") or config["vocab_size"],
        max_position_embeddings=config["max_sequence_length"],
        rope_theta=config["rope_theta"],
        rms_norm_eps=config["rms_norm_eps"],
        attention_bias=bool(config.get("include_qkv_bias") or config.get("include_bias")),
        tie_word_embeddings=bool(config.get("weight_tying")),
        pad_token_id=None,  # torch never trains an embedding's padding row, and pad is EOS here
    )


LLADA = Family(
    name="llada",
    model_types=("llada",),
    architecture="LlamaForCausalLM",
    hf_config=hf_config,
    rename=(
        ("model.transformer.wte", "model.embed_tokens"),
        ("model.transformer.ln_f", "model.norm"),
        ("model.transformer.ff_out", "lm_head"),
        ("model.transformer.blocks.N.attn_norm", "model.layers.N.input_layernorm"),
        ("model.transformer.blocks.N.ff_norm", "model.layers.N.post_attention_layernorm"),
        ("model.transformer.blocks.N.q_proj", "model.layers.N.self_attn.q_proj"),
        ("model.transformer.blocks.N.k_proj", "model.layers.N.self_attn.k_proj"),
        ("model.transformer.blocks.N.v_proj", "model.layers.N.self_attn.v_proj"),
        ("model.transformer.blocks.N.attn_out", "model.layers.N.self_attn.o_proj"),
        ("model.transformer.blocks.N.ff_proj", "model.layers.N.mlp.gate_proj"),
        ("model.transformer.blocks.N.up_proj", "model.layers.N.mlp.up_proj"),
        ("model.transformer.blocks.N.ff_out", "model.layers.N.mlp.down_proj"),
    ),
    mask_token="<|mdm_mask|>",
    block_key="block_length",
)
