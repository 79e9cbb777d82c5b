"""The model family of DiffusionGemma: how its config.json and key names map onto lfpo.contrib.canvases.stack."""

from typing import Any

from lfpo.config.json import Json
from lfpo.contrib.canvases.model import CanvasModel
from lfpo.models.config_checks import expect
from lfpo.models.family import Family


def diffusion_gemma_config(config: Json) -> object:
    """The text model's configuration. Raises ImportError for transformers before 5.23, which has no such class."""
    from lfpo.contrib.canvases.stack import text_config

    expect(config, tie_word_embeddings=(True, None))  # False would untie the context's layers from the canvas's
    fields = config["text_config"]
    expect(fields, use_bidirectional_attention=(None, "vision"), tie_word_embeddings=(True, None))
    return text_config(fields)


def diffusion_gemma_model(config: object) -> Any:
    from lfpo.contrib.canvases.stack import Backbone

    return Backbone(config)


# DiffusionGemma reads the context causally and denoises canvases of `canvas_length` tokens over it, without a mask
# token: noise is uniform over the vocabulary. Its layers are stored once, but for a scalar of each, which the context
# has for itself.
DIFFUSION_GEMMA = Family(
    name="diffusion_gemma",
    model_types=("diffusion_gemma",),
    architecture="DiffusionGemmaForBlockDiffusion",
    hf_config=diffusion_gemma_config,
    build=diffusion_gemma_model,
    rename=(
        ("model.decoder.layers.N.layer_scalar", "model.layers.N.canvas_scalar"),
        ("model.encoder.language_model.layers.N.layer_scalar", "model.layers.N.context_scalar"),
        ("model.decoder", "model"),
    ),
    carried=("model.encoder.vision_tower.", "model.encoder.embed_vision."),
    copies=(("model.encoder.language_model", "model.decoder"),),
    turn_end="<turn|>",
    block_key="canvas_length",
    block_default=256,
    causal_context=True,
    text_section="text_config",
    mask_token=None,
    buffers_like_weights=True,
    model=CanvasModel,
    frozen_routers=True,
)
