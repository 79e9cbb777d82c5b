"""What a run keeps in memory from pass to pass: weights, reference, optimiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lfpo.models.four_bit import BYTES_PER_WEIGHT as FOUR_BIT
from lfpo.train.config import LFPOConfig
from lfpo.train.optim import moment_bytes
from lfpo.train.plan.shapes import Sizes

Phases = tuple[float, float, float]  # start, rollout, update


@dataclass(frozen=True)
class Standing:
    """parts: name -> bytes of one GPU in each phase. host: name -> bytes of CPU memory of each process."""

    parts: dict[str, Phases]
    host: dict[str, float]


def standing(
    args: LFPOConfig, sizes: Sizes, *, adapter: int, share: float, autocast: bool, needs_base: bool
) -> Standing:
    """share: of the layers that one process holds. adapter: numbers of one adapter, 0 without LoRA."""
    per_value = getattr(torch, args.dtype).itemsize
    outside, layers = per_value * sizes.outside, per_value * sizes.layers
    small = (per_value - FOUR_BIT) * sizes.matrices if args.load_in_4bit else 0
    start, base = outside + layers - small, outside + share * layers - small
    away = layers if args.offload_reference else 0
    frozen: Phases = (0, 0, 0)  # a policy that does not train
    if args.lora is None:
        frozen = (outside, outside, outside) if away else (start, base, base)

    # Matrices of the layers in bfloat16 for the time of the rollouts; what comes from CPU memory is cast on its way.
    copies = 0
    if autocast and not args.fsdp and not args.rollout_compile:
        copies = 2 * sizes.matrices * (per_value > 2 and not args.load_in_4bit) + 2 * 2 * adapter
    brought = away - (per_value * sizes.matrices if copies else 0) if away else 0
    unpacked = sizes.matrix * (2 if autocast else per_value) if args.load_in_4bit else 0

    trained = adapter or share * sizes.layers + sizes.outside
    moments = moment_bytes(args.optim) * trained
    paged = args.optim.startswith("paged")
    # Of the tensors of paged moments only the one that is being stepped must be there.
    largest = moment_bytes(args.optim) * (sizes.matrix if args.lora else max(sizes.head, sizes.rest))
    parts: dict[str, Phases] = {
        "weights": (start + 4 * adapter, base + 4 * adapter, base + 4 * adapter),
        "reference": (4 * adapter,) * 3 if args.lora else frozen,
        "base policy": frozen if needs_base else (0, 0, 0),
        "bfloat16 copies to sample with": (0, copies, 0),
        "reference's layers brought over": (0, brought, per_value * sizes.layer if away else 0),
        "a matrix out of its 4 bits": (0, unpacked, unpacked),
        "optimiser": (0, 0, min(largest, moments)) if paged else (0, moments, moments),
        "gradients": (0, 0, 4 * trained),
    }
    host = {"reference": away, "base policy": away if needs_base else 0, "optimiser": moments if paged else 0}
    return Standing(parts, {name: size for name, size in host.items() if size})
