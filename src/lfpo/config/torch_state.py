"""The settings of torch that hold for a whole process, kept over a user's code that changes them."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

AUTOCAST = ("cpu", "cuda")  # device types


@contextlib.contextmanager
def torch_state_kept() -> Iterator[None]:
    """After the block gradients, the default device and dtype, autocast and the precision of float32 products are as
    before it, or as torch begins with where the block loaded torch: training needs its own, whatever a user's module or
    function sets. torch is not loaded here."""
    loaded = sys.modules.get("torch")
    before = _state(loaded) if loaded else (True, "cpu", None, dict.fromkeys(AUTOCAST, False), "highest")
    try:
        yield
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_grad_enabled") and (now := _state(torch)) != before:
            _restore(torch, before, now)


def _state(torch: Any) -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        str(torch.get_default_device()),
        torch.get_default_dtype(),
        {kind: torch.is_autocast_enabled(kind) for kind in AUTOCAST},
        _precision(torch),
    )


def _precision(torch: Any) -> str | None:
    """That of float32 products; None where it was set by torch's newer names, of which this one does not tell."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None


def _restore(torch: Any, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
    grad, device, dtype, autocast, precision = before
    torch.set_grad_enabled(grad)
    if device != now[1]:  # None takes away the context that makes tensors elsewhere
        torch.set_default_device(None if device == "cpu" else device)
    torch.set_default_dtype(dtype or torch.float32)
    for kind, enabled in autocast.items():
        torch.set_autocast_enabled(kind, enabled)
    if None not in (precision, now[4]):
        torch.set_float32_matmul_precision(precision)
