"""A tiny random DiffusionGemma, made and saved by transformers' own class."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lfpo.models import MaskedDiffusionLM, load_model
from tiny import write_tokenizer

CANVAS, WINDOW, CHARACTERS = 8, 8, 128
SPECIAL = ("<pad>", "<eos>", "<turn|>")
VOCABULARY = CHARACTERS + len(SPECIAL)
PAD, EOS, TURN = range(CHARACTERS, VOCABULARY)


def need_gemma() -> None:
    """Skip a test where transformers has not the class."""
    if not hasattr(__import__("transformers"), "DiffusionGemmaForBlockDiffusion"):
        pytest.skip("this transformers has no DiffusionGemma")


def write_gemma(folder: Path, *, seed: int = 0, std: float = 0.3, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint as `save_pretrained` leaves it, vision tower included, with a tokenizer."""
    need_gemma()
    from transformers import (
        DiffusionGemmaConfig,
        DiffusionGemmaForBlockDiffusion,
        DiffusionGemmaTextConfig,
        Gemma4VisionConfig,
    )

    text = DiffusionGemmaTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=WINDOW,
        max_position_embeddings=256,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    vision = Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        position_embedding_size=16,
    )
    model = DiffusionGemmaForBlockDiffusion(
        DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS)
    )
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.copy_(1 + 0.2 * noise if parameter.ndim == 1 else std * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):  # different for encoder and decoder
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=rng))
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, TURN]}))
    write_tokenizer(folder, SPECIAL, eos_token="<eos>", pad_token="<pad>", characters=CHARACTERS)
    return folder


def changed(folder: Path, **fields: Any) -> Path:
    """The checkpoint with other fields in config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


@functools.cache
def both(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[MaskedDiffusionLM, Any]:
    """Our model of a checkpoint, and transformers'."""
    from transformers import DiffusionGemmaForBlockDiffusion

    theirs = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=dtype, experts_implementation="eager")
    return load_model(folder, dtype=dtype).eval(), theirs.eval()
