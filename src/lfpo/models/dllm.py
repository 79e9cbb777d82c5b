"""dllm's Qwen3 models: a Qwen3 with the key names of Qwen3's checkpoints, and full attention, or block by block.
Logits at position i predict token i, although the models grew from an autoregressive one.

Known from dllm's code (its A2DQwen3 class, loader and samplers) and the published names; no checkpoint was seen here.
"""

from dataclasses import replace

from lfpo.models.sdar import SDAR

DLLM_QWEN3 = replace(
    SDAR,
    name="dllm_qwen3",
    model_types=("a2d-qwen3",),
    mask_token="<|mask|>",
    block_default=None,
    # Both published checkpoints say the same in config.json; dllm trained and sampled this one in blocks of 32.
    named_block=("Qwen3-0.6B-diffusion-bd3lm", {"block_size": 32}),
    # dllm's loader calls the template so: the models were trained on answers after an empty thought.
    template_prefix="{%- set enable_thinking = false -%}",
)
