"""What differs between model families, as data: configuration, key names, logit shift, special tokens. And how a
family's model is built from a config.json."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from lfpo.config.json import Json
from lfpo.core.attention import NAME as ATTENTION
from lfpo.core.attention import FullPrecisionRope
from lfpo.core.model import MaskedDiffusionLM
from lfpo.models.config_checks import check_config
from lfpo.models.experts import NAME as EXPERTS
from lfpo.models.experts import without_autocast


@dataclass(frozen=True)
class Family:
    """One family of masked diffusion language models over one of transformers' own architectures.

    model_types: values of `model_type` in config.json that select this family.
    architecture: name of the transformers class. hf_config: turns config.json into that class's configuration.
    rename: (checkpoint prefix, transformers prefix) of parameter names; "N" stands for the layer number. A prefix
        matches whole dotted parts, and the first match is used.
    fused: (checkpoint prefix, transformers prefixes) of a checkpoint tensor that holds the rows of several parameters,
        in this order.
    stacked: (transformers name, checkpoint names) of a parameter that holds a matrix for each expert: in the checkpoint
        expert "E" has tensors of its own, whose rows follow each other in this order.
    shift: True where logits at position i predict token i + 1 (models adapted from an autoregressive one).
    shift_key: the field of config.json that says so, in families whose checkpoints differ in it (missing: 0).
    marker: fields that config.json must have besides `model_type`: transformers' own model types are also those of
        autoregressive models, which are not diffusion models.
    mask_token: the mask token's text, used where neither config nor tokenizer names one; None: there is none.
    tokenizer_class: transformers' class for checkpoints without tokenizer.json, whose own class is remote code.
    turn_end: the token that ends a chat turn, taken as EOS where generation_config.json lists it.
    block_key: the field of config.json with the block length of a model that attends block by block (None: no model of
        this family does). block_default: its value where the field is missing; None stands for full attention.
    named_block: (pattern, block length) of published checkpoints whose config.json lacks the block length and whose
        name matches the pattern (None: the name has the number, as the pattern's group).
    causal_context: whether blocks are denoised over a causal context (see lfpo.core.attention). Logits of clean
        tokens are shifted there, those of noised ones are not.
    model: the class of its models, where noise is not of masks.
    text_section: the section of config.json with the text model's fields, where it has one.
    buffers_like_weights: whether buffers, which are held in float32, are saved in the dtype of the weights.
    build: makes the model of a configuration, where no class of transformers is one stack of layers under a head.
    head_bias: a checkpoint's bias of the head, where it has one: the first column of the head behind the states'. The
        head is tied to the embeddings.
    ends_with_pad: whether completions end with the padding token, whatever config.json says of EOS.
    padding: a token that completions end and are padded with in those checkpoints whose tokenizer has it, whatever
        config.json says.
    frozen_routers: whether routers are never trained.
    carried: prefixes of a checkpoint's tensors that are not held and are copied to what is saved of the loaded model.
    copies: (prefix, prefix) of tensors that some checkpoints hold a second time, and of those they are tied to. A copy
        is left out if it holds the same numbers, and refused if not.
    template_prefix: Jinja that goes before the tokenizer's chat template.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    hf_config: Callable[[Json], transformers.PretrainedConfig]
    rename: tuple[tuple[str, str], ...] = ()
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    stacked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    shift: bool = False
    shift_key: str | None = None
    marker: tuple[str, ...] = ()
    mask_token: str | None = "<|mask|>"
    tokenizer_class: str | None = None
    turn_end: str | None = None
    block_key: str | None = None
    block_default: int | None = None
    named_block: tuple[str, int | None] | None = None
    causal_context: bool = False
    model: type[MaskedDiffusionLM] = MaskedDiffusionLM
    text_section: str | None = None
    buffers_like_weights: bool = False
    build: Callable[[Any], nn.Module] | None = None
    head_bias: str | None = None
    ends_with_pad: bool = False
    padding: str | None = None
    frozen_routers: bool = False
    carried: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    template_prefix: str = ""

    def block_length(self, config: Json) -> int | None:
        """Tokens of a block: a token attends to its own block and to those before it. None: full attention."""
        length: int | None = None if self.block_key is None else config.get(self.block_key)
        return self.block_default if length is None else length

    def to_checkpoint(self, key: str) -> str:
        """The family's own name of a transformers parameter, or of the tensor that holds its rows among others'. The
        parameters of `stacked` have no such name."""
        fused = [(part, joined) for joined, parts in self.fused for part in parts]
        return replace_prefix(key, [*fused, *((new, old) for old, new in self.rename)])


def replace_prefix(key: str, pairs: Iterable[tuple[str, str]]) -> str:
    """The name with its prefix replaced, by the first of the (old, new) pairs that fits; "N" stands for a number."""
    for old, new in pairs:
        prefix = re.escape(old).replace("N", r"(\d+)")
        renamed, count = re.subn(rf"^{prefix}(?=\.|$)", new.replace("N", r"\1"), key)
        if count:
            return renamed
    return key


def build_backbone(family: Family, config: Json) -> nn.Module:
    """The transformers model of a family's config.json on the meta device, bidirectional, with float32 RoPE (its
    inv_freq buffer holds real values, on the CPU). Raises UserError for a field that would make another network,
    KeyError for a missing one, and what the class of transformers raises for a wrong one."""
    for fields in (config,) if family.text_section is None else (config, config[family.text_section]):
        check_config(fields, windows=family.build is not None)
    hf_config = family.hf_config(config)
    hf_config.is_causal = False  # read by transformers when it builds the mask from padding
    hf_config._attn_implementation = ATTENTION
    hf_config._experts_implementation = EXPERTS
    with torch.device("meta"):
        backbone: Any = (family.build or getattr(transformers, family.architecture))(hf_config)
    # Checkpoints do not hold inv_freq: rebuild it in float32, outside of the meta device.
    backbone.model.rotary_emb = FullPrecisionRope(type(backbone.model.rotary_emb)(config=hf_config))
    without_autocast(backbone)
    return backbone
