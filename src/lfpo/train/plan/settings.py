"""The configuration of `lfpo plan`."""

from __future__ import annotations

from dataclasses import dataclass

from lfpo.base.checks import at_least_one


@dataclass
class PlanConfig:
    """Configuration of `lfpo plan`, beside the keys of the recipe (those of lfpo train).

    gpus: ranks of torchrun, one for each GPU. gpu_memory: GiB of one GPU (None: this machine's GPU, else 80).
    prompt_length: tokens of a long prompt; the recipe does not tell.
    tflops, tflops_float32: speed of training's matrix products, in 10^12 FLOP/s, in 16 bits and in float32 (None: half
        of one large product's speed here; without a GPU 400 and 30, about half of an H100's peaks).
    device: cuda or cpu; a CPU's chunks are smaller.
    output: a JSON file to write the plan to.
    """

    gpus: int = 1
    gpu_memory: float | None = None
    prompt_length: int = 256
    tflops: float | None = None
    tflops_float32: float | None = None
    device: str = "cuda"
    output: str | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "gpus", "prompt_length")
        for name in ("gpu_memory", "tflops", "tflops_float32"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name!r} must be above 0")
        if self.device not in ("cuda", "cpu"):
            raise ValueError(f"device {self.device!r} must be cuda or cpu")
