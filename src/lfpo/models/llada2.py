"""LLaDA2.0 and LLaDA2.1: a Glm4Moe, trained by block diffusion. A token attends to its own block and to the blocks
before it. Logits at position i predict token i.

A checkpoint has one tensor for query, key and value. Its router adds a bias to the experts' scores to choose them, and
combines their outputs by the scores without it; the bias is a buffer, which training leaves alone. config.json names
neither the mask token nor EOS: the tokenizer does.
"""

from typing import Any

from transformers import Glm4MoeConfig
from transformers import __version__ as VERSION

from lfpo.base.errors import UserError
from lfpo.models.family import STACKED_EXPERTS, Family, expect, shared_fields

# Older versions give the experts of groups that were not chosen a score of 0, which beats a negative score.
FIRST_VERSION = (5, 6)
ATTENTION = "model.layers.N.self_attn"


def hf_config(config: dict[str, Any]) -> Glm4MoeConfig:
    """LLaDA2's config.json as a Glm4MoeConfig.

    Raises KeyError for a missing field, UserError for a feature that Glm4Moe has not and for a version of transformers
    whose Glm4Moe chooses other experts.
    """
    if tuple(int(part) for part in VERSION.split(".")[:2]) < FIRST_VERSION:
        raise UserError(
            f"transformers {VERSION} chooses other experts than LLaDA2 does; install transformers 5.6 or later"
        )
    expect(
        config,
        score_function=("sigmoid",),
        moe_router_enable_expert_bias=(True,),
        using_split_qkv_in_self_attention=(False, None),
        use_bias=(False, None),
        norm_head=(False, None),
        rope_scaling=(None,),
        use_sliding_window=(False, None),
        hidden_act=("silu", None),
    )
    return Glm4MoeConfig(
        **shared_fields(config),
        head_dim=config["head_dim"],
        intermediate_size=config["intermediate_size"],
        moe_intermediate_size=config["moe_intermediate_size"],
        first_k_dense_replace=config["first_k_dense_replace"],
        n_routed_experts=config["num_experts"],
        n_shared_experts=config["num_shared_experts"],
        num_experts_per_tok=config["num_experts_per_tok"],
        n_group=config["n_group"],
        topk_group=config["topk_group"],
        norm_topk_prob=config["norm_topk_prob"],
        routed_scaling_factor=config["routed_scaling_factor"],
        use_qk_norm=config["use_qk_norm"],
        attention_bias=bool(config.get("use_qkv_bias")),
        partial_rotary_factor=config["partial_rotary_factor"],
    )


LLADA2 = Family(
    name="llada2",
    model_types=("llada2_moe",),
    architecture="Glm4MoeForCausalLM",
    hf_config=hf_config,
    rename=(
        ("model.word_embeddings", "model.embed_tokens"),
        ("model.layers.N.attention.dense", f"{ATTENTION}.o_proj"),
        ("model.layers.N.attention.query_layernorm", f"{ATTENTION}.q_norm"),
        ("model.layers.N.attention.key_layernorm", f"{ATTENTION}.k_norm"),
        ("model.layers.N.mlp.gate.expert_bias", "model.layers.N.mlp.gate.e_score_correction_bias"),
    ),
    fused=(
        (
            "model.layers.N.attention.query_key_value",
            (f"{ATTENTION}.q_proj", f"{ATTENTION}.k_proj", f"{ATTENTION}.v_proj"),
        ),
    ),
    stacked=STACKED_EXPERTS,
    mask_token="<|mask|>",
    block_key="block_length",
    block_default=32,
)
