"""Wall time of a piece of code, and the matrix speed of a device."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
Matmul = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def matmul_peak(device: torch.device, dtype: torch.dtype, matmul: Matmul = torch.matmul) -> float:
    """FLOP/s of one large square product: the best of ten."""
    n = 8192 if device.type == "cuda" else 1024
    generator = torch.Generator(device).manual_seed(0)  # the global one stays as it was
    a, b = (torch.randn(n, n, generator=generator, device=device, dtype=dtype) for _ in range(2))
    seconds = [timed(lambda: matmul(a, b), device)[1] for _ in range(10)]
    return 2 * n**3 / min(seconds)


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """The result of `work` and its wall time in seconds, until the device has finished too."""
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    result = work()
    wait()
    return result, time.perf_counter() - started
