"""GPUs that `lfpo plan` knows by name: memory and speed."""

from typing import NamedTuple


class Gpu(NamedTuple):
    """memory: GiB that torch reports, a little less than the name says. bfloat16, float32: the peaks of matrix products
    in 10^12 FLOP/s, dense, with float32 sums; float32 without TF32."""

    memory: float
    bfloat16: float
    float32: float


# Peaks are those of NVIDIA's data sheets and architecture papers, without sparsity.
GPUS: dict[str, Gpu] = {
    "l4": Gpu(22.0, 121, 30.3),
    "a10": Gpu(22.0, 125, 31.2),
    "rtx3090": Gpu(23.6, 71, 35.6),
    "rtx4090": Gpu(23.6, 165, 82.6),
    "rtx5090": Gpu(31.3, 209, 104.8),
    "a100-40gb": Gpu(39.4, 312, 19.5),
    "l40s": Gpu(44.4, 362, 91.6),
    "a6000": Gpu(47.4, 155, 38.7),
    "a100": Gpu(79.1, 312, 19.5),
    "h100-pcie": Gpu(79.1, 756, 51.0),
    "h100": Gpu(79.1, 989, 67.0),
    "h200": Gpu(139.8, 989, 67.0),
    "b200": Gpu(178.3, 2250, 75.0),
}
# The share of these peaks that a whole iteration reaches. An H200 reached 78 % in one large product, and layers of
# LLaDA-8B reached 54 % of that in rollouts (docs/gpu.md): 0.42.
REACHED = 0.4


def fastest(memory: float) -> str:
    """The fastest GPU that has no more memory than so many GiB, by its name; l4 where none is so small."""
    fitting = [name for name, gpu in GPUS.items() if gpu.memory <= memory]
    return max(fitting, key=lambda name: (GPUS[name].bfloat16, GPUS[name].memory), default="l4")
