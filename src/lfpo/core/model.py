"""The model class that all other packages use: tokens in, one prediction for each position out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from lfpo.config.json import Json
from lfpo.core.head import LogitMap, Precision, logits, precision_of
from lfpo.core.structure import FULL, Doubled, Structure

# A run's policies: theta, which is trained; theta_old, which samples the rollouts; the policy before training.
CURRENT, OLD, BASE = "current", "old", "base"
NO_TOKEN = -1  # the id of a token that a family has not


class MaskedDiffusionLM(nn.Module):
    """A bidirectional transformer whose prediction at position i is for the token at position i, in every family.

    The logit shift of Dream and DiffuCoder is undone here and nowhere else.

    mask_id, eos_id, pad_id: token ids; mask_id is NO_TOKEN in a family without one. max_length: longest
        prompt + completion, in tokens.
    block_length: tokens of a block, for a model that attends within a block and to the blocks before it; None for full
        attention.
    causal_context: whether blocks are denoised over a context in which a token attends to those before it only.
    config: the family's own config.json. source: the folder it was loaded from (None for a fresh model).
    adapter: the LoRA adapter that this policy's forwards use (see lfpo.models.lora); None without LoRA.
    base_digest: with LoRA a digest of the weights in `source`; empty without.
    autocast: run the body (not the head) in bfloat16; hidden states are returned in the weights' dtype.
    head_precision: of products with the head: auto, float32, tf32 or bfloat16 (see lfpo.core.head.precision_of).
    device, dtype: of the head's weights. Inputs must be on `device`.
    """

    # Points where a family with noise of another kind hangs in (lfpo.contrib.canvases). What stands here is of masks.

    asks_about_all: ClassVar[bool] = False
    """Whether a noised state asks about all tokens, because nothing shows which of them are noised."""

    own_rule: ClassVar[str | None] = None
    """The reveal rule by which `sample_unit` samples; None: any rule that fills in masks."""

    logit_map: LogitMap | None = None
    """What becomes of the products with the head before they are logits; None: they are the logits."""

    def attention_mask(self, structure: Structure, real_BL: torch.Tensor, doubled: Doubled | None = None) -> Any:
        """The mask that the body takes: see Structure.mask."""
        return structure.mask(real_BL, self.body_dtype, doubled)

    def noise(self, length: int, rng: torch.Generator) -> tuple[torch.Tensor, bool]:
        """What stands in noised positions of a training example of so many tokens, [length] int64, and whether its
        prediction is conditioned on a first one (see `signal`)."""
        return torch.full((length,), self.mask_id), False

    def noised_views(self, views: Any, seeds: Sequence[int], inner: int) -> Any:
        """Views (lfpo.core.views) with this family's noise where they have masks. seeds: of the rollouts that
        `views.row` numbers. inner: the pass through them."""
        return views

    def signal(
        self,
        noised_BL: torch.Tensor,
        clean_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor,
        prompt_B: torch.Tensor,
        temperature_BL: torch.Tensor,
        *,
        structure: Structure,
    ) -> torch.Tensor | None:
        """What conditions the prediction of noised rows: a first prediction of them, at a temperature. None: nothing.
        The other arguments are those of lfpo.core.doubled.noised_hidden."""
        return None

    def doubled_inputs(self, columns: int, signal: torch.Tensor | None) -> Json:
        """Further inputs of the body in the doubled layout with so many columns of noised tokens."""
        return {}

    def hidden_of_noised(self, input_ids_BL: torch.Tensor) -> torch.Tensor:
        """Hidden states of rows all of whose tokens are noised; of `lfpo plan`."""
        return self.hidden(input_ids_BL)

    def sample_unit(self, unit: Any, hook: Any = None, compiled: bool = False, **options: Any) -> Any:
        """The trajectories of a request, sampled by `own_rule`. options: as of lfpo.rollout.local_engine.run_unit."""
        raise NotImplementedError

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
        self.causal_context = bool(family.causal_context)
        self.vocab_size = int(backbone.config.vocab_size)
        self.max_length = int(backbone.config.max_position_embeddings)
        self.mask_id, self.eos_id, self.pad_id = mask_id, eos_id, pad_id
        self.adapter: str | None = None
        self.base_digest = ""
        self.autocast, self.head_precision = False, "auto"
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
            mask = self.attention_mask(structure, attention_mask_BL.bool())
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
        products = logits(hidden, self.head_weight, self.products)
        return products if self.logit_map is None else self.logit_map(products)

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


def saved_buffers(backbone: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Names and values of the buffers that checkpoints hold, such as the bias of a router. They are float32 in a model
    of any dtype, are not trained and not split."""
    return [
        (f"{path}.{name}", buffer)
        for path, module in backbone.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
