"""Device and precision of a policy's layers: kept in CPU memory between uses, or prepared for sampling.

Only the layers move. Embeddings and head stay on the device, because the loss reads the head directly.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from lfpo.config.json import Json
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.rank_tensors import whole
from lfpo.models.experts import base_layer, routers
from lfpo.models.four_bit import dequantized
from lfpo.models.lora import adapter_delta


def frozen_copy_on_cpu(model: MaskedDiffusionLM) -> MaskedDiffusionLM:
    """A frozen copy whose layers are stored in CPU memory (pinned if the model is on a GPU). A forward copies each
    layer to the device before it runs and releases it afterwards, so one layer is on the device at a time."""
    pinned = model.device.type == "cuda"
    stored = {
        id(p): _frozen(torch.empty_like(p.data, device="cpu", pin_memory=pinned).copy_(p.data))
        for p in model.backbone.model.layers.parameters()
    }
    policy = model.frozen_copy(stored)
    for layer in policy.backbone.model.layers:
        loader = _LayerLoader(layer, policy.device)
        layer.register_forward_pre_hook(loader.load)
        layer.register_forward_hook(loader.release, always_call=True)
    return policy


class _LayerLoader:
    """Copies a layer's weights to the device before its forward and releases them after it. Does nothing while
    `sampling` has replaced the weights."""

    def __init__(self, layer: nn.Module, device: torch.device):
        self.slots, self.device = _slots(layer), device
        self.loaded = False

    def load(self, *_: object) -> None:
        self.loaded = all(parameters[name] is stored for parameters, name, stored in self.slots)
        for parameters, name, stored in self.slots if self.loaded else []:
            parameters[name] = _frozen(stored.detach().to(self.device, non_blocking=True, copy=True))

    def release(self, *_: object) -> None:
        for parameters, name, stored in self.slots if self.loaded else []:
            parameters[name] = stored


@contextlib.contextmanager
def sampling(policy: MaskedDiffusionLM, *, cast: bool, move_to_device: bool, merge: bool = False) -> Iterator[None]:
    """Prepare a policy for many forwards without gradients; the stored weights are put back at the end.

    cast: hold the layers' matrices in bfloat16. The results are those of autocast, which would cast them each time.
    move_to_device: copy all layers, which are stored in CPU memory, to the device.
    merge: add the policy's LoRA adapter to copies of the matrices that it adapts, dequantised over a 4-bit base: one
        product where there were three. The sum is rounded to the copies' dtype once. No other policy of this backbone
        may run meanwhile.
    """
    narrow = {id(p) for _, p in narrow_matrices(policy.backbone)} if cast else set()
    slots: list[tuple[Json, str, nn.Parameter]] = []
    with merged_adapter(policy, policy, cast=cast) if merge else contextlib.nullcontext():
        try:
            slots = _slots(policy.backbone.model.layers)
            for parameters, name, stored in slots:
                weight = stored.detach().to(policy.device, non_blocking=True, copy=move_to_device)
                if id(stored) in narrow:
                    # A second call, so that the device casts; `to` with both arguments would cast on the CPU.
                    weight = weight.to(torch.bfloat16)
                if weight.dtype != stored.dtype or move_to_device:
                    parameters[name] = _frozen(weight)
            yield
        finally:
            for parameters, name, stored in slots:
                parameters[name] = stored


@contextlib.contextmanager
def merged_adapter(policy: MaskedDiffusionLM, target: MaskedDiffusionLM, *, cast: bool) -> Iterator[None]:
    """In the block, the LoRA layers of `target` (the policy, or one with the same layers) are plain layers with the sum
    of base and adapter of `policy`, in bfloat16 if `cast`. Collective, if the policy's weights are split."""
    from peft.tuners.lora import LoraLayer

    adapter, replaced = target.adapter, list[tuple[Json, str, nn.Module]]()
    try:
        layers = [(path, m) for path, m in target.backbone.named_modules() if isinstance(m, LoraLayer)]
        for path, layer in layers:
            parent, _, name = path.rpartition(".")
            if name == "base_layer":  # a wrapper inside another one
                continue
            modules: Any = target.backbone.get_submodule(parent)._modules
            replaced.append((modules, name, modules[name]))
            modules[name] = _with_sums(policy, path, layer.get_base_layer(), cast)
        target.adapter = None  # a forward need not switch adapters, of which there are none left
        yield
    finally:
        for modules, name, layer in replaced:
            modules[name] = layer
        target.adapter = adapter


def _with_sums(policy: MaskedDiffusionLM, path: str, base: nn.Module, cast: bool) -> nn.Module:
    """A layer like `base`, a linear layer or the experts of a layer, with the policy's parameters of the layer `path`,
    its adapter added."""
    plain: Any
    if isinstance(base, nn.Linear):  # may be a 4-bit one
        with torch.device("meta"):
            plain = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None)
    else:
        plain = copy.copy(base)
        plain._parameters = dict(base._parameters)
        plain.adapters = ()
    for name in [n for n, p in plain._parameters.items() if p is not None]:
        weight = merged(policy, f"{path}.{name}")
        plain._parameters[name] = _frozen(weight.to(torch.bfloat16) if cast and weight.ndim > 1 else weight)
    return plain


def merged(policy: MaskedDiffusionLM, name: str, collect: Callable[[torch.Tensor], Any] = whole) -> Any:
    """The value of one of a policy's `weights`: collected if it is split, dequantised, adapter added.

    collect: gives the whole of a split tensor, a collective; None on a rank that needs no value and gets None.
    """
    module_name, _, kind = name.rpartition(".")
    module = policy.backbone.get_submodule(module_name)
    weight = collect(dequantized(getattr(base_layer(module), kind)).detach())
    delta = None if policy.adapter is None or weight is None else adapter_delta(module, kind, policy.adapter)  # float32
    return weight if delta is None else delta.detach().to(weight.device).add_(weight).to(weight.dtype)


def narrow_matrices(backbone: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and values of the layers' matrices that autocast rounds to bfloat16. Routers multiply in float32."""
    wide = {id(router.weight) for router in routers(backbone)}
    return [
        (name, p)
        for name, p in backbone.named_parameters()
        if name.startswith("model.layers.") and p.ndim >= 2 and p.is_floating_point() and id(p) not in wide
    ]


def _slots(module: nn.Module) -> list[tuple[Json, str, nn.Parameter]]:
    """(parameter dict of a submodule, name, parameter) of every parameter of `module`."""
    return [(m._parameters, name, p) for m in module.modules() for name, p in m._parameters.items() if p is not None]


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
