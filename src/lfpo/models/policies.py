"""The policies of a run, loaded as its settings ask for: precision, LoRA, split and 4-bit weights."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.config.errors import UserError
from lfpo.config.training import TrainingConfig
from lfpo.core import collectives
from lfpo.core.model import BASE, CURRENT, OLD, MaskedDiffusionLM
from lfpo.models.autocast import autocasts
from lfpo.models.four_bit import quantize
from lfpo.models.fsdp import frozen_copy as split_frozen_copy
from lfpo.models.fsdp import gathered, gathered_by_layer, shard
from lfpo.models.loading import load_model, load_tokenizer
from lfpo.models.lora import attach, inject, with_adapter
from lfpo.models.placement import frozen_copy_on_cpu, sampling


def load_policies(
    args: TrainingConfig, model: Any, tokenizer: object, *, needs_base: bool, needs_old: bool = True
) -> tuple[dict[str, MaskedDiffusionLM], Any]:
    """The policies by name (lfpo.core.model), on this rank's device, and the tokenizer.

    model: see LFPOTrainer; a loaded model becomes the current policy itself. needs_base, needs_old: whether the base
    policy and theta_old are kept.
    Raises UserError for a loaded model without its tokenizer, and for settings that its attention does not go with.
    """
    if isinstance(model, MaskedDiffusionLM):
        check_trainable(args, model)
    device, mesh = collectives.device(), distributed.mesh(args.fsdp_size) if args.fsdp else None
    autocast = args.bf16 and device.type == "cuda"
    if not isinstance(model, MaskedDiffusionLM):
        name = model or args.model or ""
        dtype = getattr(torch, args.dtype)
        four_bit = (torch.bfloat16 if autocast else dtype) if args.load_in_4bit else None
        model = load_model(name, dtype=dtype, device=device, mesh=mesh, cast=autocast, four_bit=four_bit)
        tokenizer = tokenizer or load_tokenizer(name)
    elif tokenizer is None:
        raise UserError("a loaded model was given without its tokenizer; pass tokenizer=load_tokenizer(...)")
    elif mesh is not None:
        shard(model.to(device), mesh, cast=autocast)
    elif args.load_in_4bit:
        quantize(model.backbone, device, torch.bfloat16 if autocast else model.dtype)
    # The same precision in updates, rollouts and evaluation, so that they run the same policy.
    model.autocast = autocasts(args, device.type, model.backbone.config.hidden_size)
    model.head_precision = args.head_precision
    if mesh is None:
        model.to(device)
    if args.lora is not None:
        old = attach(model, args.lora, seed=args.seed)
        for unsplit in model.unsplit:
            unsplit.base_digest = model.base_digest
            inject(unsplit, args.lora)
        others = ({OLD: old} if needs_old else {}) | ({BASE: with_adapter(model, BASE)} if needs_base else {})
    else:
        frozen_copy: Callable[[MaskedDiffusionLM], MaskedDiffusionLM] = MaskedDiffusionLM.frozen_copy
        if mesh is not None or args.offload_reference:
            frozen_copy = frozen_copy_on_cpu if mesh is None else split_frozen_copy
        others = {name: frozen_copy(model) for name, needed in ((OLD, needs_old), (BASE, needs_base)) if needed}
    if args.gradient_checkpointing:
        checkpoint_layers(model)
    policies = {CURRENT: model} | others
    changes = args.fsdp or model.autocast or args.lora is not None or args.offload_reference
    for name, policy in policies.items():  # theta, which is evaluated, stays on the device
        move = args.offload_reference and name != CURRENT
        policy.ready = partial(ready_to_sample, args=args, move=move) if changes else None
    return policies, tokenizer


def check_trainable(args: TrainingConfig, model: MaskedDiffusionLM) -> None:
    """Raise UserError for a loaded model whose training would go wrong without a word."""
    if model.adapter is not None:
        raise UserError("model: it has a LoRA adapter already; load it again by load_model")
    narrow = {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
    if narrow and args.lora is None and not args.load_in_4bit:
        name = str(narrow.pop()).removeprefix("torch.")
        raise UserError(
            f"model: its weights are in {name}, which rounds small steps away; call model.float() first, or set lora"
        )


def checkpoint_layers(model: MaskedDiffusionLM) -> None:
    """Turn on gradient checkpointing: a forward keeps each layer's input, and the backward pass runs it again."""
    # The method's name depends on the version of transformers.
    enable = getattr(model.backbone, "activation_checkpointing_enable", None)
    (enable or model.backbone.gradient_checkpointing_enable)({"use_reentrant": False})


@contextlib.contextmanager
def ready_to_sample(policy: MaskedDiffusionLM, args: Any, *, move: bool = False) -> Iterator[MaskedDiffusionLM]:
    """A policy made ready for many forwards without gradients. move: its layers are stored in CPU memory."""
    merge = args.merges_lora(policy.device.type)
    if args.fsdp:
        by_layer = args.rollout_gather == "layer"
        with gathered_by_layer(policy) if by_layer else gathered(policy, cast=policy.autocast, merge=merge) as ready:
            yield ready
        return
    # A compiled forward casts as it goes: it must find its weights where they were when it was compiled.
    cast = policy.autocast and not args.rollout_compile
    with sampling(policy, cast=cast, move_to_device=move, merge=merge):
        yield policy
