"""Memory of a forward and a backward pass, measured by running them on tensors without data.

torch's fake tensors run the training code itself and allocate nothing. One and two rows, two and three layers are run;
larger numbers are extrapolated, because memory grows linearly in both.
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
from lfpo.models.lora import inject
from lfpo.models.settings import LoraSettings
from lfpo.train.plan.shapes import skeleton

Kind = Literal["full", "checkpointed", "forward"]


@dataclass(frozen=True)
class Activations:
    """Bytes beside weights and gradients. kept: held from the forward to its backward pass. peak: the most in both."""

    kept: float
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
) -> Activations:
    """Activations of the body for `rows` rows of `length` tokens, with `layers` layers of a family's config.json.

    kind: "full", forward and backward; "checkpointed", the same with gradient checkpointing; "forward", a forward
    without gradients.
    """
    model = (json.dumps(config), dtype, json.dumps(asdict(lora)) if lora else "", kind == "checkpointed")
    measured = [_two_and_three_layers(kind, n, length, autocast, *model) for n in (1, 2)]

    def extrapolated(field: str) -> float:
        pairs = [(getattr(two, field), getattr(three, field)) for two, three in measured]
        one_row, two_rows = (two + (layers - 2) * (three - two) for two, three in pairs)
        return one_row + (rows - 1) * (two_rows - one_row)

    return Activations(extrapolated("kept"), extrapolated("peak"))


@functools.cache
def _two_and_three_layers(
    kind: Kind, rows: int, length: int, autocast: bool, config: str, dtype: torch.dtype, lora: str, checkpointed: bool
) -> tuple[Activations, Activations]:
    model, fake = _three_layers(config, dtype, lora, checkpointed)
    model.autocast = autocast
    body = model.backbone.model
    found, all_layers = [], body.layers
    # Not one layer: the input of the first is kept in any case.
    for layers in (2, 3):
        body.layers = all_layers[:layers]
        found.append(_run(model, fake, rows, length, backward=kind != "forward"))
    return found[0], found[1]


@functools.lru_cache(maxsize=4)
def _three_layers(
    config: str, dtype: torch.dtype, lora: str, checkpointed: bool
) -> tuple[MaskedDiffusionLM, FakeTensorMode]:
    """A trainable model of three layers whose parameters are fake tensors."""
    model = skeleton(json.loads(config), layers=3, dtype=dtype)
    if lora:
        inject(model, LoraSettings(**json.loads(lora)))
    if checkpointed:
        model.checkpoint_layers()
    fake = FakeTensorMode()
    with fake:
        _make_fake(model.backbone)
    # Gradients of parameters are not activations: drop them, and do not compute the embedding's, which is large.
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(_drop_gradient)
    model.train()
    model.backbone.model.embed_tokens.requires_grad_(False)
    return model, fake


def _run(model: MaskedDiffusionLM, fake: FakeTensorMode, rows: int, length: int, *, backward: bool) -> Activations:
    with fake:
        ids = torch.zeros(rows, length, dtype=torch.long)
        with _LiveBytes(model.parameters()) as live, torch.set_grad_enabled(backward):
            hidden = model.hidden(ids)
            kept = live.now
            if hidden.requires_grad:
                hidden.backward(torch.empty_like(hidden))
    return Activations(kept, live.peak)


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _make_fake(backbone: nn.Module) -> None:
    """Replace meta parameters and buffers by fake CPU ones: CPU kernels save the same tensors as a GPU's."""
    fakes: dict[int, nn.Parameter] = {}
    for module in backbone.modules():
        for name, p in module._parameters.items():
            if p is not None:
                fakes.setdefault(id(p), nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad))
                module._parameters[name] = fakes[id(p)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of live storages that operations create. now: at present. peak: the most so far.

    excluded: tensors whose storages do not count.
    """

    def __init__(self, excluded: Any):
        super().__init__()
        self.now = self.peak = 0
        self.seen = weakref.WeakSet(p.untyped_storage() for p in excluded)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage() not in self.seen:
                storage = tensor.untyped_storage()
                self.seen.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return out

    def _freed(self, size: int) -> None:
        self.now -= size
