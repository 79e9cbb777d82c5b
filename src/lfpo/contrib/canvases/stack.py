"""DiffusionGemma: transformers' decoder layers as one stack, which reads the context causally and denoises canvases.

transformers has two stacks, an encoder of the context and a decoder of the canvas, whose weights are tied: all but one
scalar of each layer. Here one stack holds the weights once, and the attention mask says which tokens are context and
which are canvas. So adapters, split weights and quantised ones are those of one stack, and the doubled layout takes one
forward. The vision tower is not held (see Family.carried).

Imported only where such a model is built: transformers 5.17 has not this class.
"""

import functools
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as published
from transformers.models.diffusion_gemma.configuration_diffusion_gemma import DiffusionGemmaTextConfig

from lfpo.config.json import Json
from lfpo.contrib.canvases.noise import embedding_scale


class Stack(nn.Module):
    """Embeddings, layers, norm and self-conditioning, under the names of transformers' decoder.

    Each layer has two scalars, of which a token is multiplied by one: `context_scalar` and `canvas_scalar` [1].
    """

    def __init__(self, config: DiffusionGemmaTextConfig):
        super().__init__()
        self.config = config
        # Plain embeddings, scaled in `forward`: FSDP replaces the lookup, and the padding token stays trainable.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            published.DiffusionGemmaDecoderTextLayer(config, i) for i in range(config.num_hidden_layers)
        )
        layer: Any
        for layer in self.layers:
            del layer.layer_scalar
            layer.self_attn.append_to_cache = functools.partial(_update, layer.self_attn.layer_idx)
            layer.layer_scalar = 1.0  # the layer multiplies by it; `forward` multiplies by the token's own
            layer.register_buffer("context_scalar", torch.ones(1))
            layer.register_buffer("canvas_scalar", torch.ones(1))
        self.norm = published.DiffusionGemmaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = published.DiffusionGemmaTextRotaryEmbedding(config)
        self.self_conditioning = published.DiffusionGemmaSelfConditioning(config)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: dict[str, torch.Tensor],
        position_ids: torch.Tensor,
        canvas: int = 0,
        conditioning: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> BaseModelOutput:
        """input_ids [B, N + L]: N = `canvas` tokens of canvases, then L of the context. attention_mask: a mask of the
        whole input for each of the two kinds of layers. conditioning [B, N, D]: expected embeddings of the canvas
        tokens under an earlier prediction (see `expected_embeddings`); None or 0: there is none."""
        embedded = self.embed_tokens(input_ids) * embedding_scale(self.config, self.embed_tokens.weight.dtype)
        if canvas:
            tokens = embedded[:, :canvas]
            signal = torch.zeros_like(tokens) if conditioning is None else conditioning.to(tokens.dtype)
            embedded = torch.cat([self.self_conditioning(tokens, signal), embedded[:, canvas:]], dim=1)
        in_canvas_L1 = torch.arange(input_ids.shape[1], device=input_ids.device)[:, None] < canvas
        kinds = self.config.layer_types
        rotations = {kind: self.rotary_emb(embedded, position_ids, kind) for kind in set(kinds)}
        hidden = embedded
        layer: Any
        for layer, kind in zip(self.layers, kinds, strict=False):  # lfpo.plan runs some of the layers
            hidden = layer(
                hidden,
                position_embeddings=rotations[kind],
                attention_mask=attention_mask[kind],
                position_ids=position_ids,
                past_key_values=past_key_values,
            )
            scalar_L1 = torch.where(in_canvas_L1, layer.canvas_scalar, layer.context_scalar)
            hidden = (hidden * scalar_L1).to(hidden.dtype)
        return BaseModelOutput(last_hidden_state=self.norm(hidden))


class Backbone(published.DiffusionGemmaPreTrainedModel):
    """The stack under its head, which is tied to the embeddings."""

    config: DiffusionGemmaTextConfig

    def __init__(self, config: DiffusionGemmaTextConfig):
        super().__init__(config)
        self.model = Stack(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


def _update(layer: int, cache: Any, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache itself knows whether it stores (CanvasContext); transformers' decoder only reads."""
    return cache.update(key, value, layer)


def text_config(fields: Json) -> DiffusionGemmaTextConfig:
    """The configuration of the text model. fields: `text_config` of config.json."""
    return DiffusionGemmaTextConfig(**{k: v for k, v in fields.items() if k != "model_type"})
