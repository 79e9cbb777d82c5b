"""Whether forwards multiply in bfloat16 while the weights stay float32 (`bf16`): on a GPU always, on a CPU where a
short measurement says that it pays."""

import functools
import time

import torch
from torch.nn import functional as F

from lfpo.config.training import TrainingConfig
from lfpo.models.narrow_products import has_bfloat16

# Measured on a CPU with AMX (python -m benchmarks bfloat16): a model of width 128 is 0.9 times
# as fast.
LEAST_WIDTH = 256
LEAST_GAIN = 1.2  # in time: less is lost in casts between the products
ROWS, WIDTH = 512, 1024  # of the product that is timed


def autocasts(args: TrainingConfig, device: str, width: int) -> bool:
    """Whether a policy of this width (hidden size) runs under autocast. device: "cuda" or "cpu"."""
    return args.bf16 and (device == "cuda" or not reason_against(args, width))


def reason_against(args: TrainingConfig, width: int) -> str:
    """Why `bf16` is off on this CPU; empty where it is on. Split and 4-bit weights have their own casts, for GPUs."""
    if args.dtype != "float32" or args.fsdp or args.load_in_4bit:
        return "for float32 weights, without fsdp and load_in_4bit"
    if width < LEAST_WIDTH:
        return f"too narrow a model, {width} of at least {LEAST_WIDTH}"
    if not has_bfloat16():
        return "torch has no fast products of bfloat16 numbers for it"
    if (gain := bfloat16_gain()) < LEAST_GAIN:
        return f"products are {gain:.1f} times as fast here"
    return ""


def precision_of(args: TrainingConfig, device: str, width: int) -> str:
    """The precision of products, for the line about a run."""
    if not args.bf16:
        return f"products in {args.dtype}"
    if autocasts(args, device, width):
        return "products in bfloat16"
    return f"products in {args.dtype} (bf16 is off on this CPU: {reason_against(args, width)})"


@functools.cache
def bfloat16_gain() -> float:
    """How many times as fast as float32 a linear layer's forward and backward pass is under autocast on this CPU; the
    best of five each, in turn. A fifth of a second."""
    x, weight = torch.ones(ROWS, WIDTH, requires_grad=True), torch.ones(WIDTH, WIDTH, requires_grad=True)

    def seconds(enabled: bool) -> float:
        begun = time.perf_counter()
        with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            F.linear(x, weight).sum().backward()
        return time.perf_counter() - begun

    taken = [(seconds(False), seconds(True)) for _ in range(5)]
    return min(wide for wide, _ in taken) / min(narrow for _, narrow in taken)
