"""LoRA: one base model in memory, and an adapter for each policy that differs from it.

The current policy and the reference are two adapters; the base policy is the model with both off. The reference's EMA
averages the factors A and B, and the product of averages is not the average of products: between updates theta_old is
near the EMA of the full weights, not equal to it (with ema_decay 0 it is a plain copy, and equal).
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lfpo.base.checks import at_least_one
from lfpo.base.errors import UserError, nearest
from lfpo.base.rng import generator
from lfpo.models import MaskedDiffusionLM
from lfpo.models.adapters import _switch
from lfpo.models.roles import CURRENT, OLD

# What d1 and those after it list, in Llama's names (arXiv 2504.12216's code).
PUBLISHED = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj")


@dataclass(frozen=True)
class LoraSettings:
    """r, lora_alpha: rank and scale (alpha / r), d1's by default.

    target_modules: "all-linear" (every linear layer but the head); "as-published" (what the peers' list really adapts:
    in LLaDA, whose output, gate and down projections have other names, only q, k, v and up); or a list of names, the
    family's own or transformers'.

    There is no dropout: it would make a policy's probabilities differ from themselves between two forwards.
    """

    r: int = 128
    lora_alpha: float = 64
    target_modules: str | list[str] = "all-linear"

    def __post_init__(self) -> None:
        at_least_one(self, "r")
        if not self.lora_alpha > 0:
            raise ValueError(f"lora_alpha {self.lora_alpha} must be above 0")


def settings_of(peft_config: Any) -> LoraSettings:
    """The settings that a peft LoraConfig stands for. Raises UserError where it asks for what is not offered."""
    if getattr(peft_config, "lora_dropout", 0):
        raise UserError("peft_config: lora_dropout must be 0: with it a policy's probabilities change between forwards")
    if getattr(peft_config, "peft_type", None) != "LORA":
        raise UserError(f"peft_config: expected a LoraConfig, found {type(peft_config).__name__}")
    targets = peft_config.target_modules
    return LoraSettings(
        r=peft_config.r,
        lora_alpha=peft_config.lora_alpha,
        target_modules="all-linear" if targets is None else targets if isinstance(targets, str) else sorted(targets),
    )


def attach(model: MaskedDiffusionLM, settings: LoraSettings, *, seed: int = 0) -> MaskedDiffusionLM:
    """Give `model` two new adapters that change nothing yet, freeze its own weights, and return the reference policy,
    which shares them. Only the adapter "current" trains; its factors are float32 whatever the weights are.

    A starts as peft's does (uniform within 1 / sqrt(inputs)) but from `seed`, B at zero.
    Raises UserError for a target name that matches nothing.
    """
    reference = inject(model, settings)
    for (name, mine), (_, theirs) in zip(factors(model), factors(reference), strict=True):
        mine.data, theirs.data = mine.data.float(), theirs.data.float()
        if "lora_A" in name:
            uniform = torch.rand(mine.shape, generator=generator(seed, "lora", name))
            mine.data.copy_((2 * uniform - 1) / mine.shape[1] ** 0.5)
        theirs.data.copy_(mine.data)
    return reference


def inject(model: MaskedDiffusionLM, settings: LoraSettings) -> MaskedDiffusionLM:
    """The layers of `attach` without their values, which a model on the meta device has not."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("lora needs the package peft: pip install peft") from error

    config = LoraConfig(
        r=settings.r, lora_alpha=settings.lora_alpha, target_modules=target_names(model, settings.target_modules)
    )
    model.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # two adapters are what is wanted
        for name in (CURRENT, OLD):
            inject_adapter_in_model(
                config, model.backbone, adapter_name=name, low_cpu_mem_usage=model.device.type == "meta"
            )
    model.adapter, reference = CURRENT, model.with_adapter(OLD)
    _switch(model.backbone, CURRENT)
    return reference


def target_names(model: MaskedDiffusionLM, targets: str | list[str]) -> list[str]:
    """Last parts of the linear layers' names, in transformers' spelling."""
    linear = [n for n, m in model.backbone.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    # The family's own name of each layer, and transformers', both say the same layer.
    names = {model.family.to_checkpoint(n + ".weight").split(".")[-2]: n.split(".")[-1] for n in linear}
    if targets == "all-linear":
        return sorted(set(names.values()))
    if targets == "as-published":
        return sorted(names[name] for name in PUBLISHED if name in names)
    if isinstance(targets, str):
        raise UserError(f"lora target_modules {targets!r}: expected 'all-linear', 'as-published' or a list of names")
    known = {**names, **{n: n for n in names.values()}}
    for name in targets:
        if name not in known:
            raise UserError(f"lora target_modules: {name!r} is no linear layer of this model{nearest(name, known)}")
    if not targets:
        raise UserError("lora target_modules: the list is empty")
    return sorted({known[name] for name in targets})


def factors(policy: MaskedDiffusionLM) -> list[tuple[str, nn.Parameter]]:
    """Names and values of a policy's adapter, in a fixed order; names without the adapter's own."""
    mark = f".{policy.adapter}."
    return [(n.replace(mark, "."), p) for n, p in policy.backbone.named_parameters() if "lora_" in n and mark in n]


def save_adapter(policy: MaskedDiffusionLM, folder: Path) -> None:
    """Write a policy's factors in peft's format; peft loads them onto the transformers model of the same weights."""
    folder.mkdir(parents=True)
    tensors = {f"base_model.model.{n}": p.detach().cpu().contiguous() for n, p in factors(policy)}
    save_file(tensors, folder / "adapter_model.safetensors")
    config = policy.backbone.peft_config[policy.adapter].to_dict()
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    (folder / "adapter_config.json").write_text(json.dumps(plain, indent=2, default=str) + "\n", encoding="utf-8")


def load_adapter(policy: MaskedDiffusionLM, folder: Path) -> None:
    """Copy saved factors into a policy's, in place. Raises UserError when they are of another shape or layers."""
    saved = load_file(folder / "adapter_model.safetensors")
    mine = {f"base_model.model.{n}": p for n, p in factors(policy)}
    if saved.keys() != mine.keys() or any(saved[n].shape != p.shape for n, p in mine.items()):
        raise UserError(f"{folder}: holds an adapter of other layers or rank than lora in the configuration says")
    for name, parameter in mine.items():
        parameter.data.copy_(saved[name])
