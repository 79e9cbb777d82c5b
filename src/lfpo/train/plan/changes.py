"""Suggests changes to a recipe that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from lfpo.base.lora_settings import LoraSettings
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import Estimate

# estimate(args, gpus=...) for a given model, prompt length and device.
Plan = Callable[..., Estimate]


class Change(NamedTuple):
    """label: what to change. peak: bytes on the fullest GPU after this change and those before it."""

    label: str
    peak: float


def suggestions(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> list[Change]:
    """Changes until the run fits into `memory` bytes a GPU. Each builds on those before it; labels that begin with "or"
    are alternatives to them."""
    changes = []
    if not args.gradient_checkpointing:
        args = replace(args, gradient_checkpointing=True)
        changes.append(Change("gradient_checkpointing: true", plan(args, gpus=gpus).peak))
        if changes[-1].peak <= memory:
            return changes
    if fewer := _fewer_tokens(plan, args, gpus, memory):
        return [*changes, fewer]
    if args.lora is None and not args.fsdp:
        lighter, light = _lighter(plan, args, gpus, memory)
        changes += lighter
        if lighter and lighter[-1].peak <= memory:
            return changes
        if fewer := _fewer_tokens(plan, light, gpus, memory):
            changes.append(fewer)
    return changes + _more_gpus(plan, args, gpus, memory) + _adapters(plan, args, gpus, memory)


def _lighter(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> tuple[list[Change], LFPOConfig]:
    """Optimisers with smaller moments and an offloaded reference, until it fits; also the changed recipe."""
    changes = []
    steps: tuple[tuple[str, Any], ...] = (
        ("optim", "adamw_8bit"),
        ("offload_reference", True),
        ("optim", "paged_adamw_8bit"),
    )
    for name, value in steps:
        if getattr(args, name) in ("paged_adamw_8bit", value) or (name == "offload_reference" and args.rollout_compile):
            continue
        args = replace(args, **{name: value})
        changes.append(Change(f"{name}: {str(value).lower()}", plan(args, gpus=gpus).peak))
        if changes[-1].peak <= memory:
            break
    return changes, args


def _fewer_tokens(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> Change | None:
    """update_tokens and rollout_tokens, halved until the run fits; None if it never does."""
    tokens = min(args.update_tokens, args.rollout_tokens)
    found = plan(args, gpus=gpus)
    if found.totals[0] > memory:  # more than fits before the first token
        return None
    while tokens // 2 >= found.length:
        tokens //= 2
        smaller = replace(
            args, update_tokens=min(args.update_tokens, tokens), rollout_tokens=min(args.rollout_tokens, tokens)
        )
        peak = plan(smaller, gpus=gpus).peak
        if peak <= memory:
            return Change(f"update_tokens and rollout_tokens: {tokens}", peak)
    return None


def _more_gpus(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> list[Change]:
    """The number of GPUs, doubled up to 64, at which the run fits with FSDP."""
    optim = args.optim if args.lora else "adamw_torch"
    split = replace(args, fsdp=True, load_in_4bit=False, offload_reference=False, optim=optim)
    while gpus * 2 <= min(64, args.prompts_per_iteration):
        gpus *= 2
        peak = plan(split, gpus=gpus).peak
        if peak <= memory:
            return [Change(f"or {gpus} GPUs with fsdp: true", peak)]
    return []


def _adapters(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> list[Change]:
    """LoRA, and if that does not fit a 4-bit base."""
    changes = []
    if args.lora is None:
        args = replace(args, lora=LoraSettings(), dtype="bfloat16", offload_reference=False)
        peak = plan(args, gpus=gpus).peak
        changes.append(Change(f"or lora: {{r: {LoraSettings().r}}}, dtype: bfloat16", peak))
        if peak <= memory:
            return changes
    if not args.fsdp and not args.load_in_4bit:
        peak = plan(replace(args, load_in_4bit=True), gpus=gpus).peak
        changes.append(Change("load_in_4bit: true", peak))
    return changes
