"""What a forward and a backward pass hold in memory, counted by running them on tensors that have no data.

torch's fake tensors go through the very code of training, layer by layer, and allocate nothing; a few layers are run
and the rest follows, since layers are alike.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..lora import LoraSettings, factors, inject
from ..models import MaskedDiffusionLM
from .shapes import skeleton

Work = Callable[[MaskedDiffusionLM, torch.Tensor, bool], torch.Tensor]


@dataclass(frozen=True)
class Held:
    """Bytes above weights and gradients: between a forward pass and its backward pass, and at the peak of both."""

    between: float
    peak: float


def measure(
    kind: Literal["kept", "checkpointed", "forward"],
    config: dict[str, Any],
    *,
    rows: int,
    length: int,
    dtype: torch.dtype,
    lora: LoraSettings | None,
    autocast: bool,
) -> Held:
    """The body's passes over `rows` rows of `length` tokens, for a family's config.json: forward and backward, the same
    with gradient checkpointing, or a forward alone."""
    settings = (json.dumps(config), length, dtype, json.dumps(asdict(lora)) if lora else "", autocast)
    layers = skeleton(config).backbone.config.num_hidden_layers
    # One row or two, two layers or three (the first one's input stays): from there on both only repeat.
    one, two = _few_layers(kind, 1, *settings), _few_layers(kind, 2, *settings)

    def extended(field: str) -> float:
        first, second = (
            getattr(a, field) + (getattr(b, field) - getattr(a, field)) * (layers - 2) for a, b in (one, two)
        )
        return first + (second - first) * (rows - 1)

    return Held(extended("between"), extended("peak"))


@functools.cache
def _few_layers(
    kind: str, rows: int, config: str, length: int, dtype: torch.dtype, lora: str, autocast: bool
) -> tuple[Held, Held]:
    """With two layers and with three."""
    settings = LoraSettings(**json.loads(lora)) if lora else None
    work = {"kept": _plain, "checkpointed": _checkpointed, "forward": _forward}[kind]
    first, second = (
        _peak(json.loads(config), layers, rows, length, dtype=dtype, lora=settings, autocast=autocast, work=work)
        for layers in (2, 3)
    )
    return first, second


def _plain(model: MaskedDiffusionLM, ids_BL: torch.Tensor, autocast: bool) -> torch.Tensor:
    model.autocast = autocast
    return model.hidden(ids_BL)


def _checkpointed(model: MaskedDiffusionLM, ids_BL: torch.Tensor, autocast: bool) -> torch.Tensor:
    model.backbone.gradient_checkpointing_enable({"use_reentrant": False})
    return _plain(model, ids_BL, autocast)


def _forward(model: MaskedDiffusionLM, ids_BL: torch.Tensor, autocast: bool) -> torch.Tensor:
    with torch.no_grad():
        return _plain(model.requires_grad_(False).eval(), ids_BL, autocast)


def _peak(
    config: dict[str, Any],
    layers: int,
    rows: int,
    length: int,
    *,
    dtype: torch.dtype,
    lora: LoraSettings | None,
    autocast: bool,
    work: Work,
) -> Held:
    model = skeleton(config, layers=layers, dtype=dtype)
    if lora is not None:
        for policy in (model, inject(model, lora)):
            for _, p in factors(policy):
                p.data = p.data.float()
    with FakeTensorMode():
        _without_data(model.backbone)
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(_drop)  # gradients are counted elsewhere
        ids = torch.zeros(rows, length, dtype=torch.long)
        model.train()
        model.backbone.model.embed_tokens.requires_grad_(False)  # a gradient the size of a vocabulary, likewise
        with _Live(model.parameters()) as live:
            hidden = work(model, ids, autocast)
            between = live.now
            if hidden.requires_grad:
                hidden.backward(torch.empty_like(hidden))
    return Held(between, live.peak)


def _drop(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _without_data(backbone: nn.Module) -> None:
    """Parameters of the meta device become fake ones of the CPU, whose kernels save what a GPU's do."""
    made: dict[int, nn.Parameter] = {}
    for module in backbone.modules():
        for name, p in module._parameters.items():
            if p is not None:
                made.setdefault(id(p), nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad))
                module._parameters[name] = made[id(p)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


class _Live(TorchDispatchMode):
    """Adds up the bytes of storages from their making to their end; `known` ones do not count."""

    def __init__(self, known: Any):
        super().__init__()
        self.now = self.peak = 0
        self.seen = weakref.WeakSet(p.untyped_storage() for p in known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.seen:
                storage = tensor.untyped_storage()
                self.seen.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._end, storage.nbytes())
        return out

    def _end(self, size: int) -> None:
        self.now -= size
