"""LoRA (arXiv 2106.09685): one base model in memory, and one adapter each for the current and the reference policy.

The base policy is the model with both adapters off. The reference's EMA averages the factors A and B, and a product of
averages is not the average of products: with ema_decay above 0, theta_old is close to the EMA of the full weights, not
equal to it.

peft wraps a linear layer once, and the experts of a layer once for each parameter that is adapted, one wrapper inside
the other.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor

from lfpo.config.errors import UserError, nearest
from lfpo.config.files import read_json, write_json
from lfpo.config.models import LoraSettings
from lfpo.core.model import CURRENT, OLD, MaskedDiffusionLM
from lfpo.core.rng import generator
from lfpo.models.adapters import switch_adapter, using_adapter
from lfpo.models.experts import MATRICES, routers, stacked_factors, without_sums
from lfpo.models.tensor_files import save_tensors, weights_digest

# Fields of a LoraConfig that are taken over, and those that say nothing about the adapter.
TAKEN = {"r", "lora_alpha", "target_modules", "target_parameters", "peft_type"}
TAKEN |= {"task_type", "inference_mode", "base_model_name_or_path", "revision", "peft_version", "auto_mapping"}
# The list in the code of d1 (arXiv 2504.12216) and its successors, in Llama's names.
PUBLISHED = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj")
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # peft's files of an adapter
BASE_FILE = "base.json"  # beside a saved adapter: a digest of the weights that it was trained on


def settings_of(peft_config: Any) -> LoraSettings:
    """The settings of a peft LoraConfig. Raises UserError for other kinds of adapters, and for any other field that
    would be ignored, such as dropout (see LoraSettings)."""
    if getattr(peft_config, "peft_type", None) != "LORA":
        raise UserError(f"peft_config: expected a LoraConfig, found {type(peft_config).__name__}")
    plain = type(peft_config)()
    for field in fields(peft_config):
        value = getattr(peft_config, field.name)
        if field.name not in TAKEN and value != getattr(plain, field.name):
            raise UserError(f"peft_config: {field.name} {value!r} is not supported; leave it out")
    targets, parameters = peft_config.target_modules, peft_config.target_parameters
    if parameters and {f"mlp.experts.{name.rpartition('.')[2]}" for name in parameters} != set(MATRICES):
        raise UserError(f"peft_config: target_parameters {parameters}: expected the experts' matrices, {[*MATRICES]}")
    names: Any = "all-linear" if targets is None else targets if isinstance(targets, str) else sorted(targets)
    return LoraSettings(peft_config.r, peft_config.lora_alpha, names, experts=bool(parameters))


def attach(model: MaskedDiffusionLM, settings: LoraSettings, *, seed: int = 0) -> MaskedDiffusionLM:
    """Add the adapters CURRENT and OLD to `model`, freeze its own weights, and return the reference policy (OLD), which
    shares the backbone. Factors are float32, only CURRENT's are trainable. Raises UserError as `target_names`.

    A is uniform within 1 / sqrt(inputs), as in peft, drawn from `seed`; B is zero, so outputs do not change.
    """
    reference = inject(model, settings)
    for (name, factor), (_, old_factor) in zip(model.factors(), reference.factors(), strict=True):
        if "lora_A" in name:
            uniform = torch.rand(factor.shape, generator=generator(seed, "lora", name))
            factor.data.copy_((2 * uniform - 1) / factor.shape[1] ** 0.5)
        old_factor.data.copy_(factor.data)
    return reference


def with_adapter(model: MaskedDiffusionLM, adapter: str) -> MaskedDiffusionLM:
    """A policy that uses another adapter of the same backbone object (BASE: none)."""
    other = copy.copy(model)
    other.adapter = adapter
    return other


def inject(model: MaskedDiffusionLM, settings: LoraSettings) -> MaskedDiffusionLM:
    """`attach` without the initial values of the factors; also works on the meta device."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        target_modules=target_names(model, settings.target_modules),
        target_parameters=_expert_matrices(model) if settings.experts else None,
    )
    # The folder may hold other weights later, onto which the adapter must not be added.
    model.base_digest = model.base_digest or (weights_digest(model.source) if model.source else "")
    model.requires_grad_(False)
    with warnings.catch_warnings(), _plain_weights(model.backbone):
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # two adapters are intended
        for name in (CURRENT, OLD):
            inject_adapter_in_model(
                config, model.backbone, adapter_name=name, low_cpu_mem_usage=model.device.type == "meta"
            )
    without_sums(model.backbone)
    model.using_adapter = using_adapter
    model.adapter, reference = CURRENT, with_adapter(model, OLD)
    for _, factor in [*model.factors(), *reference.factors()]:
        factor.data = factor.data.float()  # peft gives new factors the dtype of the base
    switch_adapter(model.backbone, CURRENT)
    return reference


@contextlib.contextmanager
def _plain_weights(backbone: nn.Module) -> Iterator[None]:
    """In the block, weights split over ranks are plain tensors of their whole shape that take no memory: from a DTensor
    peft would read the shape of this rank's part."""
    parameters = [(m, name, p) for m in backbone.modules() for name, p in m._parameters.items() if p is not None]
    split = [(m, name, p) for m, name, p in parameters if isinstance(p, DTensor)]
    for module, name, p in split:
        plain = torch.empty((), dtype=p.dtype, device=p.device).expand(p.shape)
        module._parameters[name] = nn.Parameter(plain, requires_grad=False)
    try:
        yield
    finally:
        for module, name, p in split:
            module._parameters[name] = p


def _expert_matrices(model: MaskedDiffusionLM) -> list[str]:
    """The experts' matrices as peft names them. Raises UserError for a model without experts, and for a peft that has
    no second adapter on a parameter or holds its factors otherwise."""
    if not routers(model.backbone):
        raise UserError("lora experts: true: this model has no experts; leave it out")
    from peft import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < (0, 20):
        raise UserError(f"lora experts: true needs peft 0.20 or later, and {version} is installed: pip install -U peft")
    within_mlp = hasattr(model.backbone.model.layers[-1].mlp, "experts")
    return [name if within_mlp else name.removeprefix("mlp.") for name in MATRICES]


def target_names(model: MaskedDiffusionLM, targets: str | list[str]) -> list[str]:
    """The last parts of the target layers' transformers names, sorted. targets: see LoraSettings.target_modules.

    In a mixture of experts these are layers of the attention only: peft takes the names in `mlp` for the experts', of
    dense layers and shared experts too. Raises UserError for a name that matches no such layer.
    """
    linear = [n for n, m in model.backbone.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    linear = [n for n in linear if ".router." not in n]
    if model.family.stacked:
        linear = [n for n in linear if ".mlp." not in n]
    # The family's own name of each layer -> transformers' names; LLaDA2 has one for three layers.
    names: dict[str, set[str]] = {}
    for n in linear:
        names.setdefault(model.family.to_checkpoint(n + ".weight").split(".")[-2], set()).add(n.split(".")[-1])
    every = set().union(*names.values())
    if targets == "all-linear":
        return sorted(every)
    if targets == "as-published":
        return sorted(set().union(*(names[name] for name in PUBLISHED if name in names)))
    known = {**names, **{n: {n} for n in every}}
    for name in targets:
        if name not in known:  # peft would adapt the others and say nothing
            raise UserError(f"lora target_modules: {name!r} is no layer that takes an adapter{nearest(name, known)}")
    return sorted(set().union(*(known[name] for name in targets)))


def adapter_delta(module: Any, name: str, adapter: str) -> torch.Tensor | None:
    """What an adapter adds to the parameter `name` of a layer, in the dtype of its factors; None if none adapts it."""
    while hasattr(module, "base_layer") and getattr(module, "parameter_name", "weight") != name:
        module = module.base_layer
    if not hasattr(module, "base_layer"):
        return None
    if not hasattr(module, "num_experts"):
        return module.get_delta_weight(adapter)
    a_ERD, b_EOR = stacked_factors(module, adapter)
    return module.scaling[adapter] * (b_EOR @ a_ERD)


def save_adapter(policy: MaskedDiffusionLM, folder: Path) -> None:
    """Write a policy's factors in peft's format, which peft loads onto the same transformers model."""
    folder.mkdir(parents=True)
    tensors = {f"base_model.model.{n}": p.detach().cpu().contiguous() for n, p in policy.factors()}
    save_tensors(tensors, folder / ADAPTER)
    write_json(folder / BASE_FILE, {"weights": policy.base_digest})
    config = policy.backbone.peft_config[policy.adapter].to_dict()
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    write_json(folder / ADAPTER_CONFIG, plain, default=str)


def load_adapter(policy: MaskedDiffusionLM, folder: Path) -> None:
    """Copy saved factors into a policy's, in place. Raises UserError if layers, shapes, scaling or the base's weights
    differ."""
    saved = load_file(folder / ADAPTER)
    file = folder / BASE_FILE  # peft's own folders have none
    base = read_json(file).get("weights") if file.exists() else ""
    if base and policy.base_digest and base != policy.base_digest:
        raise UserError(
            f"{folder}: the adapter was trained on other weights than those in {policy.source} now; put the weights "
            "back that the run began with"
        )
    factors = {f"base_model.model.{n}": p for n, p in policy.factors()}
    if saved.keys() != factors.keys() or any(saved[n].shape != p.shape for n, p in factors.items()):
        raise UserError(f"{folder}: the saved adapter has other layers or rank than 'lora' in the configuration")
    # lora_alpha changes what the factors add, and neither their names nor their shapes.
    alpha = read_json(folder / ADAPTER_CONFIG)["lora_alpha"]
    if alpha != (own := policy.backbone.peft_config[policy.adapter].lora_alpha):
        raise UserError(f"{folder}: the saved adapter has lora_alpha {alpha}, and 'lora' in the configuration {own}")
    for name, parameter in factors.items():
        parameter.data.copy_(saved[name])
