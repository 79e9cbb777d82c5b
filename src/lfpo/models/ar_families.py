"""Families whose config.json is that of a class of transformers: dllm's a2d models, what `lfpo convert` makes of an
autoregressive model, and what `lfpo export --layout transformers` writes.

Fields keep transformers' names, so each class reads its own configuration and nothing is mapped.
"""

import functools
from typing import Any

import transformers

from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.models.family import Family

# Names that transformers gives the experts of its models in memory, and what checkpoints call them.
STACKED_EXPERTS = (
    (
        "model.layers.N.mlp.experts.gate_up_proj",
        ("model.layers.N.mlp.experts.E.gate_proj.weight", "model.layers.N.mlp.experts.E.up_proj.weight"),
    ),
    ("model.layers.N.mlp.experts.down_proj", ("model.layers.N.mlp.experts.E.down_proj.weight",)),
)
# Model types of autoregressive models that `lfpo convert` takes -> name of the class's configuration in transformers.
CONVERTIBLE = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
# What config.json says beside the fields of a class's configuration.
OWN = ("model_type", "architectures", "auto_map", "transformers_version", "_name_or_path", "is_causal", "use_cache")


def own_config(class_name: str, config: Json) -> transformers.PretrainedConfig:
    """The configuration of a class of transformers from its own config.json, with scaled rotary embeddings, biases and
    head widths as it says. Raises UserError for rotary embeddings whose frequencies depend on a pass's longest row."""
    scaling = [config.get(key) or {} for key in ("rope_scaling", "rope_parameters")]
    if any("longrope" in (rope.get("rope_type"), rope.get("type")) for rope in scaling):
        # A pass takes one of two sets of frequencies, by its longest row: a row would depend on those beside it.
        raise UserError("config.json: rotary embeddings of type 'longrope' are not supported")
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        config[name]  # a class has a default for each, of another model: KeyError
    fields = {name: value for name, value in config.items() if name not in OWN}
    # torch never trains an embedding's padding row, and the padding is EOS in many models.
    return getattr(transformers, class_name)(**{**fields, "pad_token_id": None})


def _family(name: str, model_type: str, class_name: str, **own: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architecture=class_name.replace("Config", "ForCausalLM"),
        hf_config=functools.partial(own_config, class_name),
        shift_key="logit_shift",
        **own,
    )


# dllm's layout: a class's own names, `a2d-` before its model type. dllm's config.json does not say how models attend;
# `lfpo convert` writes `block_size` for those that attend block by block, and `logit_shift`.
_A2D: Json = {
    "block_key": "block_size",
    # Published checkpoints of both kinds have equal config.json files; dllm trained these in blocks of 32.
    "named_block": ("-diffusion-bd3lm", 32),
}
_QWEN: Json = {**_A2D, "tokenizer_class": "Qwen2TokenizerFast", "turn_end": "<|im_end|>"}
# dllm's loader calls the template so: the models were trained on answers after an empty thought.
_NO_THOUGHT = "{%- set enable_thinking = false -%}"
A2D = (
    _family("a2d_llama", "a2d-llama", CONVERTIBLE["llama"], **_A2D, turn_end="<|eot_id|>"),
    _family("a2d_qwen2", "a2d-qwen2", CONVERTIBLE["qwen2"], **_QWEN),
    _family("dllm_qwen3", "a2d-qwen3", CONVERTIBLE["qwen3"], **_QWEN, template_prefix=_NO_THOUGHT),
)

# What `lfpo export --layout transformers` writes, told from autoregressive models by the field it adds.
_CLASSES = {**CONVERTIBLE, "qwen3_moe": "Qwen3MoeConfig", "glm4_moe": "Glm4MoeConfig", "ministral3": "Ministral3Config"}
EXPORTED = tuple(
    _family(
        f"exported_{model_type}",
        model_type,
        class_name,
        marker=("logit_shift", "block_length") if model_type == "ministral3" else ("logit_shift",),
        block_key="block_length",
        stacked=STACKED_EXPERTS if "moe" in model_type else (),
        causal_context=model_type == "ministral3",
    )
    for model_type, class_name in _CLASSES.items()
)
