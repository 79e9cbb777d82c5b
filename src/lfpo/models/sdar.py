"""SDAR and TraDo: a Qwen3, or a Qwen3Moe, with the key names of Qwen3's checkpoints, trained by block diffusion. A
token attends to its own block and to the blocks before it. Logits at position i predict token i, although the models
grew from autoregressive ones.

The published RMSNorm multiplies by its weight before it rounds, Qwen3's afterwards: the same in float32, not in
bfloat16.
"""

from dataclasses import replace
from typing import Any

from transformers import Qwen3Config, Qwen3MoeConfig

from lfpo.models.family import STACKED_EXPERTS, Family, expect, shared_fields

BLOCK = 4  # of every published checkpoint; those with experts do not name it in config.json


def hf_config(config: dict[str, Any]) -> Qwen3Config:
    """SDAR's config.json as a Qwen3Config. Raises KeyError for a missing field, UserError for a feature that Qwen3 has
    not or that no published checkpoint has."""
    return Qwen3Config(**_shared(config))


def moe_config(config: dict[str, Any]) -> Qwen3MoeConfig:
    """The config.json of SDAR with experts as a Qwen3MoeConfig. Raises as `hf_config`."""
    return Qwen3MoeConfig(
        **_shared(config),
        num_experts=config["num_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        moe_intermediate_size=config["moe_intermediate_size"],
        norm_topk_prob=config["norm_topk_prob"],
        decoder_sparse_step=config.get("decoder_sparse_step", 1),
        mlp_only_layers=config.get("mlp_only_layers") or [],
    )


def _shared(config: dict[str, Any]) -> dict[str, Any]:
    expect(config, hidden_act=("silu", None), rope_scaling=(None,), use_sliding_window=(False, None))
    return {
        **shared_fields(config),
        "head_dim": config["head_dim"],
        "intermediate_size": config["intermediate_size"],
        "attention_bias": bool(config.get("attention_bias")),
    }


SDAR = Family(
    name="sdar",
    model_types=("sdar",),
    architecture="Qwen3ForCausalLM",
    hf_config=hf_config,
    mask_token="<|MASK|>",
    tokenizer_class="Qwen2TokenizerFast",
    turn_end="<|im_end|>",
    block_key="block_size",
    block_default=BLOCK,
)

SDAR_MOE = replace(
    SDAR,
    name="sdar_moe",
    model_types=("sdar_moe",),
    architecture="Qwen3MoeForCausalLM",
    hf_config=moe_config,
    stacked=STACKED_EXPERTS,
)
