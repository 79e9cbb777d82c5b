"""What the machine can do, and what a piece of code took of it."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of one large square product, the best of a few."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    seconds = [timed(lambda: a @ b, device)[1] for _ in range(10)]
    return 2 * n**3 / min(seconds)


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """The result of `work` and its wall time in seconds, the device's own queue included."""
    synchronize(device)
    started = time.perf_counter()
    result = work()
    synchronize(device)
    return result, time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that `work` takes at its peak above what was held before: of the GPU's allocator, or of the process on
    Linux. None where neither can be told; the work is done all the same."""
    before = held_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif not _clear_peak():
        before = None
    work()
    if before is None:
        return None
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _kilobytes("VmHWM") * 1024
    return max(0, peak - before)


def _clear_peak() -> bool:
    """The process's peak counts from now, if the system lets it."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def held_memory(device: torch.device) -> int | None:
    """Bytes held now, of the GPU's allocator or of the process on Linux, without what was freed."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(device)
    if not STATUS.exists():
        return None
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed must not be there for the taking
    except (OSError, AttributeError):
        return None
    return _kilobytes("VmRSS") * 1024


def _kilobytes(name: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))


def against_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a group with their time and peak memory as ratios to those of the first."""
    seconds, base = rows[0]["seconds"], rows[0]["peak_memory"]
    return [
        {
            **row,
            "time_ratio": row["seconds"] / seconds,
            "memory_ratio": row["peak_memory"] / base if row["peak_memory"] is not None and base else None,
        }
        for row in rows
    ]


def spread(seconds: list[float]) -> tuple[float, float, float]:
    """Median, least and most."""
    return statistics.median(seconds), min(seconds), max(seconds)
