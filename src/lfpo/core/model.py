"""The model class that all other packages use: tokens in, one prediction for each position out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from lfpo.config.json import Json
from lfpo.core.buffers import saved_buffers
from lfpo.core.head import Precision, logits, precision_of
from lfpo.core.logit_cap import capped
from lfpo.core.roles import CURRENT
from lfpo.core.structure import FULL, Structure

NO_MASK = -1  # mask_id of a model whose noise is uniform over the vocabulary: no token


class MaskedDiffusionLM(nn.Module):
    """A bidirectional transformer whose prediction at position i is for the token at position i, in every family.

    The logit shift of Dream and DiffuCoder is undone here and nowhere else.

    mask_id, eos_id, pad_id: token ids; mask_id is NO_MASK where noise is uniform. max_length: longest prompt +
        completion, in tokens.
    block_length: tokens of a block, for a model that attends within a block and to the blocks before it; None for full
        attention.
    causal_context: whether blocks are denoised over a context in which a token attends to those before it only.
    uniform: whether noise is uniform over the vocabulary: there is no mask token, and canvases of `block_length` tokens
        are denoised over a causal context, conditioned on the prediction before.
    config: the family's own config.json. source: the folder it was loaded from (None for a fresh model).
    adapter: the LoRA adapter that this policy's forwards use (see lfpo.models.lora); None without LoRA.
    base_digest: with LoRA a digest of the weights in `source`; empty without.
    autocast: run the body (not the head) in bfloat16; hidden states are returned in the weights' dtype.
    head_precision: of products with the head: auto, float32, tf32 or bfloat16 (see lfpo.core.head.precision_of).
    device, dtype: of the head's weights. Inputs must be on `device`.
    """

    def __init__(
        self,
        backbone: Any,
        family: Any,
        config: Json,
        *,
        mask_id: int,
        eos_id: int,
        pad_id: int,
        source: Path | None = None,
    ):
        super().__init__()
        self.backbone, self.family, self.config, self.source = backbone, family, config, source
        self.block_length = family.block_length(config)
        self.causal_context, self.uniform = bool(family.causal_context), bool(family.uniform)
        self.vocab_size = int(backbone.config.vocab_size)
        self.max_length = int(backbone.config.max_position_embeddings)
        self.mask_id, self.eos_id, self.pad_id = mask_id, eos_id, pad_id
        self.adapter: str | None = None
        self.base_digest = ""
        self.autocast, self.head_precision = False, "auto"
        # With uniform noise layers are of kinds, which attend within windows of so many tokens (None: to all).
        sliding: dict[str, int | None] = {"full_attention": None}
        self.windows = sliding | {"sliding_attention": backbone.config.sliding_window} if self.uniform else None
        # Logits z are cap tanh(z / cap); None: as they are.
        self.logit_cap: float | None = getattr(backbone.config, "final_logit_softcapping", None)
        # Where FSDP splits the weights: this model unsplit, on the meta device (see lfpo.models.fsdp), in a tuple, so
        # that torch does not register it as a part of this one.
        self.unsplit: tuple[MaskedDiffusionLM, ...] = ()
        # Hooks of what adds adapters, splits or casts weights, or routes to experts: a context in which a backbone
        # uses another adapter, one in which the policy is ready for many forwards, the whole weights of a split head,
        # what to do after a pass, and what to measure during one.
        self.using_adapter: Callable[[nn.Module, str], contextlib.AbstractContextManager[None]] | None = None
        self.ready: Callable[[MaskedDiffusionLM], contextlib.AbstractContextManager[MaskedDiffusionLM]] | None = None
        self.gathered_head: Callable[[], torch.Tensor] | None = None
        self.after_pass: Callable[[], None] | None = None
        self.measure_pass: Callable[[], contextlib.AbstractContextManager[dict[str, torch.Tensor]]] | None = None
        self._compiled: list[object] = []  # the compiled body, once there is one (lfpo.core.compiled)

    @property
    def device(self) -> torch.device:
        return self.backbone.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.lm_head.weight.dtype

    @property
    def body_dtype(self) -> torch.dtype:
        """The dtype of the products in the body, and so of the values in attention."""
        return torch.bfloat16 if self.autocast else self.dtype

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Like nn.Module.to, but buffers stored in checkpoints stay float32."""
        buffers = saved_buffers(self.backbone)
        super().to(*args, **kwargs)
        for name, buffer in buffers:
            path, _, own = name.rpartition(".")
            module = self.backbone.get_submodule(path)
            setattr(module, own, buffer.to(getattr(module, own).device))
        return self

    @property
    def structure(self) -> Structure:
        """How tokens attend to each other while the model samples."""
        return Structure(self.block_length, causal=self.causal_context)

    def sampling_structure(self, block_length: int | None) -> Structure:
        """The same with a sampler's block length, where the model has blocks."""
        return dataclasses.replace(self.structure, block_length=block_length) if self.block_length else FULL

    def hidden(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor | None = None,
        cache: Any = None,
        *,
        structure: Structure = FULL,
        run: Callable[..., Any] | None = None,
    ) -> torch.Tensor:
        """Final hidden states [B, L, D] in the weights' dtype; `head(hidden[b, i])` are the logits of token i.

        attention_mask_BL: 1 or True for real tokens (None: all are real). Padding may be on both sides: it is not
            attended to, and positions are counted from each row's first real token.
        cache: takes all keys and values (see KeyValueCache.fill).
        structure: which tokens attend to which; for the doubled layout see lfpo.core.doubled.
        run: runs in place of the backbone's body (see lfpo.core.compiled).
        """
        position_ids = mask = None
        # Compiled forwards have a mask always: with and without one they would be two shapes.
        needed = run is not None or cache is not None or structure != FULL
        if needed and attention_mask_BL is None:
            attention_mask_BL = torch.ones_like(input_ids_BL)
        # Without zeros full attention needs no mask. On a GPU `all` would wait for the device, so it has one there.
        if attention_mask_BL is not None and (needed or attention_mask_BL.is_cuda or not bool(attention_mask_BL.all())):
            position_ids = structure.positions(attention_mask_BL)
            mask = structure.mask(attention_mask_BL.bool(), self.body_dtype, windows=self.windows)
        weights_dtype = self.dtype  # the body may run in another
        hidden = self.body(
            run, input_ids=input_ids_BL, attention_mask=mask, position_ids=position_ids, past_key_values=cache
        )
        return (shifted(hidden) if self.family.shift else hidden).to(weights_dtype)

    def body(self, run: Callable[..., Any] | None = None, **inputs: object) -> torch.Tensor:
        """The body's last hidden states, with this policy's adapter; between forwards CURRENT is active. run: see
        `hidden`."""
        with contextlib.ExitStack() as contexts:
            if self.using_adapter is not None and self.adapter is not None and self.adapter != CURRENT:
                contexts.enter_context(self.using_adapter(self.backbone, self.adapter))
            if self.autocast:  # without the cache of weights, which would hold copies of all until the forward's end
                contexts.enter_context(torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False))
            run = self.backbone.model if run is None else run  # a compiled body has no truth value
            hidden: torch.Tensor = run(use_cache=False, **inputs).last_hidden_state
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of hidden states [..., D]: float32 (float64 in a float64 model), as `products` says."""
        uncapped = logits(hidden, self.head_weight, self.products)
        return uncapped if self.logit_cap is None else capped(uncapped, self.logit_cap)

    @property
    def products(self) -> Precision:
        """The precision of products with the head, from `head_precision`."""
        return precision_of(self.head_precision, self.device, self.dtype)

    @property
    def head_weight(self) -> torch.Tensor:
        """The head's weights [V, D]; a family's bias is one of the columns. If they are split over ranks they are
        gathered by the first use in a pass, a collective, and held until its end (see lfpo.models.fsdp)."""
        return self.backbone.lm_head.weight if self.gathered_head is None else self.gathered_head()

    def own_parameters(self) -> list[nn.Parameter]:
        """The parameters that tell this policy from others on the same backbone: its adapter's, or all of them."""
        return list(self.parameters()) if self.adapter is None else [p for _, p in self.factors()]

    def factors(self) -> list[tuple[str, nn.Parameter]]:
        """Parameter names (without the adapter's name) and factors of the policy's LoRA adapter, in a fixed order."""
        mark = f".{self.adapter}."
        return [(n.replace(mark, "."), p) for n, p in self.backbone.named_parameters() if "lora_" in n and mark in n]

    def forward(self, input_ids_BL: torch.Tensor, attention_mask_BL: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, L, V]."""
        return self.head(self.hidden(input_ids_BL, attention_mask_BL))

    def ready_to_sample(self) -> contextlib.AbstractContextManager[MaskedDiffusionLM]:
        """A context in which the model that it gives is ready for many forwards without gradients."""
        return contextlib.nullcontext(self) if self.ready is None else self.ready(self)

    def frozen_copy(self, memo: dict[int, Any] | None = None) -> MaskedDiffusionLM:
        """A deep copy without gradients, in evaluation mode. memo: deepcopy's; object id -> what replaces the copy."""
        copied = copy.copy(self)
        copied._compiled, copied.unsplit, copied.ready = [], (), None
        return copy.deepcopy(copied, memo).requires_grad_(False).eval()


def shifted(hidden_BLD: torch.Tensor) -> torch.Tensor:
    """Hidden states, each moved to the token that it predicts, where that is the next one."""
    # Position 0 has no predecessor. Its prediction is never used, because completions follow a prompt.
    return torch.cat([hidden_BLD[:, :1], hidden_BLD[:, :-1]], dim=1)
