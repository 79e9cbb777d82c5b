"""The policies of a run, made from one checkpoint: the current one, theta_old, and the base where it is asked for."""

from __future__ import annotations

from typing import Any

import torch

from . import distributed
from .errors import UserError
from .lora import attach
from .models import MaskedDiffusionLM, load_model, load_tokenizer
from .models.four_bit import quantize
from .placement import frozen_copy_on_cpu
from .predictions import BASE, CURRENT, OLD
from .train_config import LFPOConfig


def load_policies(
    args: LFPOConfig, model: Any, tokenizer: Any, *, needs_base: bool
) -> tuple[dict[str, MaskedDiffusionLM], Any]:
    """Policies by name, and the tokenizer. model: see LFPOTrainer; a loaded one becomes the current policy itself."""
    device = distributed.device()
    if not isinstance(model, MaskedDiffusionLM):
        name = model or args.model
        # In 4 bits a model may fit a device that has no room for it as it is.
        model = load_model(name, dtype=getattr(torch, args.dtype), device="cpu" if args.load_in_4bit else device)
        tokenizer = tokenizer or load_tokenizer(name)
    elif tokenizer is None:
        raise UserError("a loaded model was given without its tokenizer; pass tokenizer=load_tokenizer(...)")
    # For every forward, of updates, rollouts and evaluation: all speak of one policy.
    model.autocast = args.bf16 and device.type == "cuda"
    if args.load_in_4bit:
        quantize(model.backbone, device, torch.bfloat16 if model.autocast else model.dtype)
    model.to(device)
    if args.lora is not None:
        policies = {CURRENT: model, OLD: attach(model, args.lora, seed=args.seed)}
        return (policies | {BASE: model.with_adapter(BASE)} if needs_base else policies), tokenizer
    frozen_copy = frozen_copy_on_cpu if args.offload_reference else MaskedDiffusionLM.frozen_copy
    return {CURRENT: model} | {name: frozen_copy(model) for name in ((OLD, BASE) if needs_base else (OLD,))}, tokenizer
