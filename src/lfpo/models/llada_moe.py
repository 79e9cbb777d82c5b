"""LLaDA-MoE: a Qwen3Moe with full attention. Logits at position i predict token i.

The published class never normalises the weights of the chosen experts, whatever its configuration says. It also knows
clipped projections, a shared expert and a bias of the experts, which Qwen3Moe does not: the published checkpoints have
none of them.
"""

from typing import Any

from transformers import Qwen3MoeConfig

from lfpo.models.family import STACKED_EXPERTS, Family, expect, shared_fields


def hf_config(config: dict[str, Any]) -> Qwen3MoeConfig:
    """LLaDA-MoE's config.json as a Qwen3MoeConfig.

    Raises KeyError for a missing field, UserError for a feature that Qwen3Moe has not.
    """
    expect(
        config,
        clip_qkv=(None,),
        shared_expert_intermediate_size=(None, 0),
        moe_router_enable_expert_bias=(False, None),
        moe_router_score_function=("softmax", None),
        router_num_group=(None,),
        routed_scaling_factor=(1, None),
        qk_layernorm=(True,),
        partial_rotary_factor=(1, None),
        rope_scaling=(None,),
        hidden_act=("silu", None),
    )
    layers = config["num_hidden_layers"]
    sparse = config.get("moe_layer_freq") or [1] * layers
    return Qwen3MoeConfig(
        **shared_fields(config),
        head_dim=config["hidden_size"] // config["num_attention_heads"],
        intermediate_size=config["dense_intermediate_size"],
        moe_intermediate_size=config["expert_intermediate_size"],
        num_experts=config["num_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[i for i in range(layers) if not sparse[i]],
        attention_bias=bool(config.get("attention_bias")),
    )


LLADA_MOE = Family(
    name="llada_moe",
    model_types=("llada", "lladamoe"),  # the published checkpoints say "llada", as those without experts
    architecture="Qwen3MoeForCausalLM",
    hf_config=hf_config,
    stacked=STACKED_EXPERTS,
    mask_token="<|mask|>",
)
