"""What a forward and a backward pass hold in memory, counted by running them on tensors that have no data.

torch's fake tensors go through the very code of training, layer by layer, and allocate nothing; a few layers are run
and the rest follows, since layers are alike.
"""

from __future__ import annotations

import functools
import json
import weakref
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lfpo.models import MaskedDiffusionLM
from lfpo.models.lora import LoraSettings, factors, inject
from lfpo.train.plan.shapes import skeleton

Kind = Literal["kept", "checkpointed", "forward"]


@dataclass(frozen=True)
class Held:
    """Bytes above weights and gradients: between a forward pass and its backward pass, and at the peak of both."""

    between: float
    peak: float


def measure(
    kind: Kind,
    config: dict[str, Any],
    *,
    layers: int,
    rows: int,
    length: int,
    dtype: torch.dtype,
    lora: LoraSettings | None,
    autocast: bool,
) -> Held:
    """The body's passes over `rows` rows of `length` tokens, for a family's config.json with so many layers: forward
    and backward, the same with gradient checkpointing, or a forward alone."""
    model = (json.dumps(config), dtype, json.dumps(asdict(lora)) if lora else "", kind == "checkpointed")
    # One row or two, two layers or three (the first one's input stays): from there on both only repeat.
    one, two = (_two_and_three_layers(kind, n, length, autocast, *model) for n in (1, 2))

    def extended(field: str) -> float:
        first, second = (
            getattr(a, field) + (getattr(b, field) - getattr(a, field)) * (layers - 2) for a, b in (one, two)
        )
        return first + (second - first) * (rows - 1)

    return Held(extended("between"), extended("peak"))


@functools.cache
def _two_and_three_layers(
    kind: Kind, rows: int, length: int, autocast: bool, config: str, dtype: torch.dtype, lora: str, checkpointed: bool
) -> tuple[Held, Held]:
    model, fake = _small(config, dtype, lora, checkpointed)
    model.autocast = autocast
    body = model.backbone.model
    found, whole = [], body.layers
    for layers in (2, 3):
        body.layers = whole[:layers]
        found.append(_held(model, fake, rows, length, backward=kind != "forward"))
    return found[0], found[1]


@functools.lru_cache(maxsize=4)
def _small(config: str, dtype: torch.dtype, lora: str, checkpointed: bool) -> tuple[MaskedDiffusionLM, FakeTensorMode]:
    """A model of three layers that trains without data."""
    model = skeleton(json.loads(config), layers=3, dtype=dtype)
    if lora:
        for policy in (model, inject(model, LoraSettings(**json.loads(lora)))):
            for _, p in factors(policy):
                p.data = p.data.float()
    if checkpointed:
        model.checkpoint_layers()
    fake = FakeTensorMode()
    with fake:
        _without_data(model.backbone)
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(_drop)  # gradients are counted elsewhere
    model.train()
    model.backbone.model.embed_tokens.requires_grad_(False)  # a gradient the size of a vocabulary, likewise
    return model, fake


def _held(model: MaskedDiffusionLM, fake: FakeTensorMode, rows: int, length: int, *, backward: bool) -> Held:
    with fake:
        ids = torch.zeros(rows, length, dtype=torch.long)
        with _Live(model.parameters()) as live, torch.set_grad_enabled(backward):
            hidden = model.hidden(ids)
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
