"""Shapes of published models, and models of these shapes with random weights, to measure speed and memory."""

from __future__ import annotations

from typing import Any

import torch

from lfpo.base.rng import python_rng
from lfpo.models import MaskedDiffusionLM, init_model

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
}


def random_model(layout: str, layers: int | None, device: torch.device, dtype: torch.dtype) -> MaskedDiffusionLM:
    """A randomly initialised model of a published shape, with `layers` layers (None: all)."""
    return init_model(with_layers(LAYOUTS[layout], layers), seed=0, device=device, dtype=dtype)


def with_layers(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """A family's config.json with another number of layers (None: its own)."""
    if layers is None:
        return config
    return {**config, "n_layers" if "n_layers" in config else "num_hidden_layers": layers}


def random_prompts(n: int, longest: int, model: MaskedDiffusionLM) -> list[list[int]]:
    """n prompts of random ordinary tokens; lengths are uniform from 3/4 of `longest` to `longest`."""
    rng = python_rng("bench prompts", n, longest)
    lengths = [rng.randint(max(1, 3 * longest // 4), longest) for _ in range(n)]
    return [[rng.randrange(100, min(100_000, model.vocab_size - 3)) for _ in range(length)] for length in lengths]
