"""Memory that a run holds between passes: weights, reference, base policy, optimiser state, gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lfpo.models.four_bit import BYTES_PER_WEIGHT as FOUR_BIT
from lfpo.train.config import LFPOConfig
from lfpo.train.optim import moment_bytes
from lfpo.train.plan.shapes import Sizes

Phases = tuple[float, float, float]  # start, rollout, update


@dataclass(frozen=True)
class ModelStates:
    """parts: name -> bytes of one GPU in each phase. host: name -> bytes of CPU memory of each rank."""

    parts: dict[str, Phases]
    host: dict[str, float]


def model_states(
    args: LFPOConfig, sizes: Sizes, *, adapter: int, share: float, autocast: bool, needs_base: bool, device: str
) -> ModelStates:
    """adapter: weights of one adapter, 0 without LoRA. share: the part of all weights that one rank holds.
    autocast: whether forwards run in bfloat16. needs_base: whether the objective has a base policy."""
    per_weight = getattr(torch, args.dtype).itemsize
    outside, layers = per_weight * sizes.outside, per_weight * sizes.layers
    saved_by_4bit = (per_weight - FOUR_BIT) * sizes.matrices if args.load_in_4bit else 0
    held = share * (outside + layers) - saved_by_4bit  # from the start: each rank reads its own rows
    offloaded = layers if args.offload_reference else 0
    frozen: Phases = (0, 0, 0)  # a policy that is not trained; with LoRA it is an adapter
    if args.lora is None:
        frozen = (outside,) * 3 if offloaded else (held,) * 3

    # The layers' matrices in bfloat16 during rollouts (lfpo.models.placement.sampling); offloaded ones are cast when
    # they are copied to the GPU. Merged adapters take a copy of every matrix that has one: of the experts' by choice.
    # FSDP gathers all of them.
    copies = 0.0
    if args.merges_lora(device) and not args.fsdp:
        apart = 0 if args.lora and args.lora.experts else sizes.experts  # matrices without adapters
        copies = (2 if autocast else per_weight) * (sizes.matrices - apart)
        copies += 2 * apart * (autocast and per_weight > 2)
        copies += 8 * sizes.matrix * (sizes.experts > apart)  # the sum of one stacked matrix, in float32
    elif autocast and not args.fsdp and not args.rollout_compile:
        copies = 2 * sizes.matrices * (per_weight > 2 and not args.load_in_4bit) + 2 * 2 * adapter
    on_gpu = offloaded - (per_weight * sizes.matrices if copies else 0) if offloaded else 0
    dequantised = sizes.matrix * (2 if autocast else per_weight) if args.load_in_4bit else 0

    trained = adapter or share * sizes.total
    moments = moment_bytes(args.optim) * trained
    paged = args.optim.startswith("paged")
    # Of paged moments only those of the tensor that is being updated have to be on the GPU.
    largest = moment_bytes(args.optim) * (sizes.matrix if args.lora else max(sizes.head, sizes.rest))
    parts: dict[str, Phases] = {
        "weights": (held + 4 * adapter,) * 3,
        "reference": (4 * adapter,) * 3 if args.lora else frozen,
        "base policy": frozen if needs_base else (0, 0, 0),
        "average": ((4 if args.lora else per_weight) * trained * bool(args.average_decay),) * 3,
        "copies for sampling": (0, copies, 0),
        "reference's layers on the GPU": (0, on_gpu, per_weight * sizes.layer if offloaded else 0),
        "one dequantised matrix": (0, dequantised, dequantised),
        "optimiser": (0, 0, min(largest, moments)) if paged else (0, moments, moments),
        "gradients": (0, 0, 4 * trained),
    }
    host = {
        "reference": offloaded,
        "base policy": offloaded if needs_base else 0,
        "optimiser": moments if paged else 0,
    }
    if args.old_policy == "sampler" and args.engine.max_staleness:
        one = 4 * adapter or share * per_weight * sizes.total
        host["earlier versions of the reference"] = (args.engine.max_staleness + 1) * one
    return ModelStates(parts, {name: size for name, size in host.items() if size})
