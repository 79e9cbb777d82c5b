"""The model every other part of the project sees: tokens in, one prediction per position out."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lfpo.models.attention import NAME as ATTENTION
from lfpo.models.attention import FullPrecisionRope, Packed
from lfpo.models.family import Family
from lfpo.models.four_bit import plain, shape_of
from lfpo.models.kv_cache import KeyValueMemory


class MaskedDiffusionLM(nn.Module):
    """A bidirectional transformer whose prediction at position i is for the token at position i, in every family.

    The logit shift of Dream and DiffuCoder is undone here and nowhere else.

    mask_id, eos_id, pad_id: token ids. max_length: the longest prompt + completion the model takes, in tokens.
    config: the family's own config.json. source: the folder it came from (None for a fresh model).
    adapter: which LoRA adapter of the backbone this policy is (see lfpo.models.lora); None where there are none.
    autocast: run the body (not the head) in bfloat16, whatever the weights' dtype; states come back in the weights'.
    """

    def __init__(
        self,
        backbone: nn.Module,
        family: Family,
        config: dict[str, Any],
        *,
        mask_id: int,
        eos_id: int,
        pad_id: int,
        source: Path | None = None,
    ):
        super().__init__()
        self.backbone: Any = backbone
        self.family = family
        self.config = config
        self.mask_id, self.eos_id, self.pad_id = mask_id, eos_id, pad_id
        self.source = source
        self.adapter: str | None = None
        self.autocast = False
        self._compiled: list[Any] | None = None

    @property
    def device(self) -> torch.device:
        return self.backbone.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.lm_head.weight.dtype

    @property
    def vocab_size(self) -> int:
        return int(self.backbone.config.vocab_size)

    @property
    def max_length(self) -> int:
        return int(self.backbone.config.max_position_embeddings)

    def hidden(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor | None = None,
        memory: KeyValueMemory | None = None,
        *,
        compiled: bool = False,
    ) -> torch.Tensor:
        """Final hidden states [B, L, D]; `head(hidden[b, i])` are the logits of token i.

        attention_mask_BL: 1 or True for real tokens. Padding may stand left, right or both: masked keys are never
        attended, and positions are counted from each row's first real token. None means nothing is padded.
        memory: an empty one, to be filled with all keys and values.
        compiled: run the body through torch.compile, which builds a program for each shape it meets.
        """
        position_ids = mask = None
        # On a GPU looking into the mask would wait for the device; a mask without zeros is only a little slower there.
        if attention_mask_BL is not None and (attention_mask_BL.is_cuda or not bool(attention_mask_BL.all())):
            position_ids = _positions(attention_mask_BL)
            mask = attention_mask_BL.bool()[:, None, None, :]
        if memory is not None and mask is None:
            mask = torch.ones_like(input_ids_BL, dtype=torch.bool)[:, None, None, :]
            position_ids = torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device)[None]
        with self._as_policy(), in_bfloat16(self.device.type, self.autocast):
            hidden = (self._compiled_body() if compiled else self.backbone.model)(
                input_ids=input_ids_BL,
                attention_mask=mask,
                position_ids=position_ids,
                past_key_values=memory,
                use_cache=False,
            ).last_hidden_state
        if self.family.shift:
            # Position 0 has no predecessor; its prediction is never used because completions follow a prompt.
            hidden = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
        return hidden.to(self.dtype)

    def packed_hidden(self, input_ids_BL: torch.Tensor, attention_mask_BL: torch.Tensor) -> torch.Tensor:
        """`hidden` of the real tokens alone, one row's after the other [tokens, D]: nothing is computed for padding."""
        real = attention_mask_BL.bool()
        lengths = real.sum(-1)
        starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        ids = input_ids_BL[real][None]
        with self._as_policy(), in_bfloat16(self.device.type, self.autocast):
            hidden = self.backbone.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids, dtype=torch.bool)[:, None, None],  # so that none is made
                position_ids=_positions(attention_mask_BL)[real][None],
                use_cache=False,
                packed=Packed(tuple(lengths.tolist()), starts),
            ).last_hidden_state[0]
        if self.family.shift:
            # A row's first token gets what its neighbour's last one says; as in `hidden`, it is never asked for.
            hidden = torch.cat([hidden[:1], hidden[:-1]])
        return hidden.to(self.dtype)

    def window_hidden(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor,
        start_B: torch.Tensor,
        width: int,
        memory: KeyValueMemory,
    ) -> torch.Tensor:
        """Final hidden states [B, width, D] that predict columns start_B .. start_B + width - 1, with the keys and
        values of all other tokens as `memory` has them; it takes over those of the window.

        Columns past L, for rows whose window is shorter, give meaningless predictions and touch nothing. start_B must
        be at least 1: with the logit shift the token before the window is run too, as it holds the first prediction.
        """
        length = input_ids_BL.shape[1]
        first = start_B - int(self.family.shift)
        columns = first[:, None] + torch.arange(width + int(self.family.shift), device=first.device)
        columns = columns.clamp(max=length)  # the scratch column
        memory.columns = columns
        seen = torch.nn.functional.pad(attention_mask_BL.bool(), (0, 1))
        with self._as_policy(), in_bfloat16(self.device.type, self.autocast):
            hidden = self.backbone.model(
                input_ids=torch.nn.functional.pad(input_ids_BL, (0, 1)).gather(1, columns),
                attention_mask=seen[:, None, None, :],
                position_ids=_positions(seen).gather(1, columns),
                past_key_values=memory,
                use_cache=False,
            ).last_hidden_state
        return hidden[:, :width].to(self.dtype)

    def _compiled_body(self) -> Any:
        """The body compiled for fixed shapes; on a GPU each shape's program is replayed as one CUDA graph."""
        if self._compiled is None:
            torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)
            mode = "reduce-overhead" if self.device.type == "cuda" else "default"
            # In a list: a submodule would be copied, saved and trained a second time.
            self._compiled = [torch.compile(self.backbone.model, dynamic=False, mode=mode)]
        return self._compiled[0]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of hidden states [..., D]."""
        return self.backbone.lm_head(hidden)

    @property
    def head_weight(self) -> torch.Tensor:
        """The head [V, D]; it has no bias in any family."""
        return self.backbone.lm_head.weight

    def forward(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor | None = None,
        positions_BL: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits: [B, L, V], or [T, V] for the T positions (row-major) where `positions_BL` is True."""
        hidden = self.hidden(input_ids_BL, attention_mask_BL)
        return self.head(hidden if positions_BL is None else hidden[positions_BL])

    def _as_policy(self) -> contextlib.AbstractContextManager[None]:
        """Switches the backbone to this policy's adapter for a forward; the current one is where it rests."""
        if self.adapter in (None, "current"):
            return contextlib.nullcontext()
        from lfpo.models.adapters import using

        assert self.adapter is not None
        return using(self.backbone, self.adapter)

    def with_adapter(self, adapter: str) -> MaskedDiffusionLM:
        """The policy that another adapter makes of the same backbone, in memory once; "base" is none of them."""
        other = copy.copy(self)
        other.adapter = adapter
        return other

    def weights(self) -> dict[str, torch.Tensor]:
        """The backbone's own parameters, split ones as they are, under the names they have without adapters; of those
        in 4 bits only shape and dtype."""
        return {
            name.replace(".base_layer.", "."): p
            if shape_of(p) == p.shape
            else torch.empty(shape_of(p), dtype=self.dtype, device="meta")
            for name, p in self.backbone.named_parameters(remove_duplicate=False)
            if "lora_" not in name
        }

    def merged(self, name: str) -> torch.Tensor:
        """One of `weights`, put together where it is split (every process must ask), out of its 4 bits where it is in
        them, this policy's adapter added."""
        from lfpo.base.distributed import whole

        module_name, _, kind = name.rpartition(".")
        module = self.backbone.get_submodule(module_name)
        if not hasattr(module, "get_delta_weight"):
            return whole(plain(getattr(module, kind))).detach()
        weight = whole(plain(getattr(module.base_layer, kind))).detach()
        if kind != "weight":
            return weight
        delta = module.get_delta_weight(self.adapter)  # in float32, as the factors are
        return (weight.to(delta.dtype) + delta).to(weight.dtype)

    def checkpoint_layers(self) -> None:
        """From now on a forward keeps each layer's input only, and the backward pass runs the layer again."""
        # transformers has renamed it.
        enable = getattr(self.backbone, "activation_checkpointing_enable", None)
        (enable or self.backbone.gradient_checkpointing_enable)({"use_reentrant": False})

    def frozen_copy(self, instead: dict[int, Any] | None = None) -> MaskedDiffusionLM:
        """A deep copy without gradients: the reference policy. instead: id -> what takes the place of its copy."""
        copied = copy.copy(self)
        copied._compiled = None
        return copy.deepcopy(copied, instead).requires_grad_(False).eval()


def in_bfloat16(device_type: str, enabled: bool) -> contextlib.AbstractContextManager[Any]:
    """Autocast that keeps no copies: a forward uses each weight once, and bfloat16 copies of all would stay to its
    end."""
    if not enabled:
        return contextlib.nullcontext()
    return torch.autocast(device_type, torch.bfloat16, cache_enabled=False)


def _positions(attention_mask_BL: torch.Tensor) -> torch.Tensor:
    """Places counted from each row's first real token."""
    return (attention_mask_BL.long().cumsum(-1) - 1).clamp(min=0)


def build_backbone(family: Family, config: dict[str, Any]) -> nn.Module:
    """The transformers model of a family's config.json on the meta device, bidirectional, with float32 RoPE."""
    import transformers

    hf_config = family.hf_config(config)
    hf_config.is_causal = False  # read by transformers when it builds the mask from padding
    hf_config._attn_implementation = ATTENTION
    with torch.device("meta"):
        backbone: Any = getattr(transformers, family.architecture)(hf_config)
    # inv_freq is a buffer that no checkpoint holds: rebuild it with real, float32 values.
    backbone.model.rotary_emb = FullPrecisionRope(type(backbone.model.rotary_emb)(config=hf_config))
    return backbone
