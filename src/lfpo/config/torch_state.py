"""The settings of torch that hold for a whole process, kept over a user's code that changes them."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

AUTOCAST = ("cpu", "cuda")  # device types


class _State(NamedTuple):
    """What torch begins with. device: a name. autocast: by device type. precision: see `_precision`."""

    grad: bool = True
    device: str = "cpu"
    dtype: Any = None  # float32, which has no name before torch is loaded
    autocast: tuple[bool, ...] = (False,) * len(AUTOCAST)
    precision: str | None = "highest"


@contextlib.contextmanager
def torch_state_kept() -> Iterator[None]:
    """After the block gradients, the default device and dtype, autocast and the precision of float32 products are as
    before it, or as torch begins with where the block loaded torch: training needs its own, whatever a user's module or
    function sets. torch is not loaded here."""
    loaded = sys.modules.get("torch")
    before = _state(loaded) if loaded else _State()
    try:
        yield
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_grad_enabled") and (now := _state(torch)) != before:
            _restore(torch, before, now)


def _state(torch: Any) -> _State:
    autocast = tuple(torch.is_autocast_enabled(kind) for kind in AUTOCAST)
    device, dtype = str(torch.get_default_device()), torch.get_default_dtype()
    return _State(torch.is_grad_enabled(), device, dtype, autocast, _precision(torch))


def _precision(torch: Any) -> str | None:
    """That of float32 products; None where it was set by torch's newer names, of which this one does not tell."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None


def _restore(torch: Any, before: _State, now: _State) -> None:
    torch.set_grad_enabled(before.grad)
    if before.device != now.device:  # None takes away the context that makes tensors elsewhere
        torch.set_default_device(None if before.device == "cpu" else before.device)
    torch.set_default_dtype(before.dtype or torch.float32)
    for kind, enabled in zip(AUTOCAST, before.autocast, strict=True):
        torch.set_autocast_enabled(kind, enabled)
    if None not in (before.precision, now.precision):
        torch.set_float32_matmul_precision(before.precision)
