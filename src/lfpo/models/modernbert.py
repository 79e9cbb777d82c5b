"""ModernBERT: transformers' layers as one stack, from the tokens to the states that one matrix makes logits of.

transformers' class has a prediction head (dense layer, activation, norm) and a decoder with a bias above its body. The
prediction head is the last step of the stack here. The bias is a column of the head's matrix, because losses and
samplers know a head by its matrix alone: it meets a 1 in every state. Embeddings are tied to the head and do not read
that column.
"""

from typing import Any

import torch
from torch import nn
from transformers import ModernBertConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.modernbert import modeling_modernbert as published

from lfpo.config.json import Json
from lfpo.core.attention import product_dtype
from lfpo.core.structure import mask_bias
from lfpo.models.ar_families import OWN
from lfpo.models.config_checks import expect
from lfpo.models.family import Family

# Columns of the head behind those of the decoder: the bias, and zeros, because a GPU's matrix units read rows of a
# multiple of 16 bytes.
EXTRA = 8


class Stack(nn.Module):
    """Embeddings, layers, last norm and prediction head."""

    def __init__(self, config: ModernBertConfig):
        super().__init__()
        self.config = config
        # Without a padding row, which would never be trained: the padding token ends completions.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size + EXTRA)
        self.embed_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
        self.layers = nn.ModuleList(
            published.ModernBertEncoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
        self.rotary_emb = published.ModernBertRotaryEmbedding(config)
        self.prediction = published.ModernBertPredictionHead(config)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: None = None,
        use_cache: bool = False,
    ) -> BaseModelOutput:
        """States [B, L, D + EXTRA] of input_ids [B, L]. attention_mask [B, 1, 1, L]: see `Structure.mask`."""
        hidden = self.embed_norm(self.embed_tokens(input_ids)[..., : self.config.hidden_size])
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        masks = {"full_attention": attention_mask, "sliding_attention": self._in_window(attention_mask, hidden)}
        rotations = {kind: self.rotary_emb(hidden, position_ids, kind) for kind in set(self.config.layer_types)}
        layer: Any
        for layer in self.layers:
            kind = layer.attention_type
            hidden = layer(hidden, attention_mask=masks[kind], position_embeddings=rotations[kind])
        hidden = self.prediction(self.final_norm(hidden))
        bias = torch.arange(EXTRA, device=hidden.device).eq(0).to(hidden.dtype)
        return BaseModelOutput(torch.cat([hidden, bias.expand(*hidden.shape[:-1], EXTRA)], dim=-1))

    def _in_window(self, attention_mask: torch.Tensor | None, hidden_BLD: torch.Tensor) -> torch.Tensor | None:
        """The mask of sliding layers, [B or 1, 1, L, L]: a token also attends to none that is further away than the
        window. Every token attends to itself, so that padding far from real tokens attends to some."""
        token = torch.arange(hidden_BLD.shape[1], device=hidden_BLD.device)
        distance = (token[:, None] - token).abs()
        near = distance <= self.config.sliding_window
        if attention_mask is None:
            return mask_bias(near[None, None], product_dtype(hidden_BLD))
        real = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
        return mask_bias(near & real | (distance == 0), product_dtype(hidden_BLD))


class Backbone(published.ModernBertPreTrainedModel):
    """The stack under its head, which is tied to the embeddings."""

    config: ModernBertConfig

    def __init__(self, config: ModernBertConfig):
        super().__init__(config)
        self.model = Stack(config)
        self.lm_head = nn.Linear(config.hidden_size + EXTRA, config.vocab_size, bias=False)


def modernbert_config(config: Json) -> ModernBertConfig:
    """config.json is transformers'. Raises UserError for dropout, and for a head without the published bias and tie."""
    none = (0.0, None)
    expect(config, attention_dropout=none, embedding_dropout=none, mlp_dropout=none)
    expect(config, decoder_bias=(True, None), tie_word_embeddings=(True, None))
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        config[name]  # the class has a default for each, of ModernBERT-base: KeyError
    fields = {name: value for name, value in config.items() if name not in OWN}
    return ModernBertConfig(**{**fields, "pad_token_id": None})


# dllm's ModernBERT-base-chat and -large-chat, and ModernBERT itself, of which fine-tuning makes them. The tokenizer has
# no EOS, and dllm takes [PAD] for it: its completions are trained with [PAD] behind them. config.json still says [SEP],
# which the chat template never gives.
MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    architecture="ModernBertForMaskedLM",
    hf_config=modernbert_config,
    build=Backbone,
    rename=(
        ("model.embeddings.tok_embeddings", "model.embed_tokens"),
        ("model.embeddings.norm", "model.embed_norm"),
        ("head", "model.prediction"),
        ("decoder", "lm_head"),
    ),
    head_bias="decoder.bias",
    ends_with_pad=True,
    mask_token="[MASK]",
)
