"""iLLaDA (arXiv 2606.25331): a Llama with the key names of Llama's checkpoints and full attention. Logits at position i
predict token i.

Known from the published class, of which other projects hold copies; config.json and the weights were not seen here.
That class rounds cos and sin of the rotary embedding to the model's dtype; here they are float32, as in
`lfpo.models.attention`.
"""

from typing import Any

from transformers import LlamaConfig

from lfpo.models.family import Family, expect, shared_fields


def hf_config(config: dict[str, Any]) -> LlamaConfig:
    """iLLaDA's config.json as a LlamaConfig. Raises KeyError for a missing field, UserError for a feature that Llama
    has not or that the published class refuses."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    expect(
        {**config, "rope_scaling": None if (kind, scaling.get("factor")) in PLAIN_ROPE else scaling},
        hidden_act=("silu", None),
        layer_norm_eps=(None,),  # with it the class has LayerNorm in place of RMSNorm
        rope_scaling=(None,),
    )
    return LlamaConfig(
        **shared_fields(config),
        intermediate_size=config["intermediate_size"],
        attention_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
    )


PLAIN_ROPE = tuple((kind, factor) for kind in (None, "default") for factor in (None, 1.0))

ILLADA = Family(
    name="illada",
    model_types=("illada",),
    architecture="LlamaForCausalLM",
    hf_config=hf_config,
    mask_token="<[MASK]>",  # id 5; neither config.json nor the tokenizer's mask_token names it
)
