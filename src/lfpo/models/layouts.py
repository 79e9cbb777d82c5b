"""Shapes of published models: their config.json, for plans and for models with random weights."""

from __future__ import annotations

from typing import Any

_SDAR: dict[str, Any] = {
    "model_type": "sdar",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "block_size": 4,
    "mask_token_id": 151669,
    "eos_token_id": 151643,
    "pad_token_id": 151643,
}
_LLADA_MOE: dict[str, Any] = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_experts_per_tok": 8,
    "vocab_size": 157184,
    "tie_word_embeddings": False,
    "mask_token_id": 156895,
    "eos_token_id": 156892,
    "pad_token_id": 156892,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "llada-8b": {
        "model_type": "llada",
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "mlp_hidden_size": 12288,
        "vocab_size": 126464,
        "max_sequence_length": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "mask_token_id": 126336,
        "eos_token_id": 126081,
        "pad_token_id": 126081,
    },
    "dream-7b": {
        "model_type": "Dream",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "mask_token_id": 151666,
        "eos_token_id": 151643,
        "pad_token_id": 151643,
    },
    "llada-moe-7b": {
        **_LLADA_MOE,
        "model_type": "llada",
        "num_hidden_layers": 16,
        "num_key_value_heads": 16,
        "dense_intermediate_size": 8192,
        "expert_intermediate_size": 1024,
        "num_experts": 64,
        "qk_layernorm": True,
        "max_position_embeddings": 8192,
        "rope_theta": 50000.0,
        "rms_norm_eps": 1e-5,
    },
    "llada2-mini": {
        **_LLADA_MOE,
        "model_type": "llada2_moe",
        "num_hidden_layers": 20,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "num_experts": 256,
        "num_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 32768,
        "rope_theta": 600000.0,
        "rms_norm_eps": 1e-6,
    },
    "sdar-1.7b": {
        **_SDAR,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "sdar-4b": {**_SDAR, "hidden_size": 2560, "intermediate_size": 9728},
    "sdar-8b": {**_SDAR, "hidden_size": 4096, "intermediate_size": 12288},
    "sdar-30b-a3b": {
        **_SDAR,
        "model_type": "sdar_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
}


def with_layers(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """A family's config.json with another number of layers (None: its own)."""
    if layers is None:
        return config
    return {**config, "n_layers" if "n_layers" in config else "num_hidden_layers": layers}
