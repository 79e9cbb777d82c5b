"""Dream and DiffuCoder: a Qwen2 with full attention whose logits are shifted: position i predicts token i + 1.

Checkpoint keys already have Qwen2's names. The published tokenizer class is remote code over Qwen2's vocabulary files,
which transformers' own Qwen2 tokenizer reads.
"""

from typing import Any

from transformers import Qwen2Config

from lfpo.models.family import Family, shared_fields


def hf_config(config: dict[str, Any]) -> Qwen2Config:
    """Dream's config.json as a Qwen2Config. Raises KeyError for a missing field."""
    return Qwen2Config(
        **shared_fields({"num_key_value_heads": config["num_attention_heads"], **config}),
        intermediate_size=config["intermediate_size"],
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
