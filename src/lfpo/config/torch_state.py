"""The settings of torch that hold for a whole process, kept over a user's code that changes them."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

AUTOCAST = ("cpu", "cuda")  # device types
FLAGS = ("mkldnn.enabled", "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic")  # of torch.backends
_modes: list[Any] = []  # inference modes that were entered: torch leaves one whose object is deleted


class _State(NamedTuple):
    """What torch begins with. device: a name. autocast: by device type. precision: see `_precision`. threads: None
    before torch is loaded. deterministic: whether its algorithms are, and whether others only warn. anomaly: whether
    autograd's anomaly detection is on, and whether it checks for NaN. flags: see FLAGS."""

    grad: bool = True
    inference: bool = False
    device: str = "cpu"
    dtype: Any = None  # float32, which has no name before torch is loaded
    autocast: tuple[bool, ...] = (False,) * len(AUTOCAST)
    precision: str | None = "highest"
    threads: int | None = None
    deterministic: tuple[bool, bool] = (False, False)
    anomaly: tuple[bool, bool] = (False, True)
    flags: tuple[bool, ...] = (True, True, False, False)


@contextlib.contextmanager
def torch_state_kept() -> Iterator[None]:
    """After the block torch's settings, those of `_State`, are as before it, or as torch begins with where the block
    loaded torch: training needs its own, whatever a user's module or function sets. torch is not loaded here."""
    loaded = sys.modules.get("torch")
    before = _state(loaded) if loaded else _State()
    try:
        yield
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "set_grad_enabled") and (now := _state(torch)) != before:
            _restore(torch, before, now)


def _state(torch: Any) -> _State:
    return _State(
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        device=str(torch.get_default_device()),
        dtype=torch.get_default_dtype(),
        autocast=tuple(torch.is_autocast_enabled(kind) for kind in AUTOCAST),
        precision=_precision(torch),
        threads=torch.get_num_threads(),
        deterministic=(
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        anomaly=(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        flags=tuple(getattr(backend, name) for backend, name in _flags(torch)),
    )


def _flags(torch: Any) -> list[tuple[Any, str]]:
    """The modules and attributes of FLAGS."""
    return [(getattr(torch.backends, backend), name) for backend, name in (flag.split(".") for flag in FLAGS)]


def _precision(torch: Any) -> str | None:
    """That of float32 products; None where it was set by torch's newer names, of which this one does not tell."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None


def _restore(torch: Any, before: _State, now: _State) -> None:
    if before.inference != now.inference:  # first, as it sets gradients too
        _modes.append(torch.inference_mode(before.inference))
        _modes[-1].__enter__()
    torch.set_grad_enabled(before.grad)
    if before.device != now.device:  # None takes away the context that makes tensors elsewhere
        torch.set_default_device(None if before.device == "cpu" else before.device)
    torch.set_default_dtype(before.dtype or torch.float32)
    for kind, enabled in zip(AUTOCAST, before.autocast, strict=True):
        torch.set_autocast_enabled(kind, enabled)
    if None not in (before.precision, now.precision):
        torch.set_float32_matmul_precision(before.precision)
    if before.threads not in (None, now.threads):
        torch.set_num_threads(before.threads)
    torch.use_deterministic_algorithms(before.deterministic[0], warn_only=before.deterministic[1])
    torch.autograd.set_detect_anomaly(*before.anomaly)
    for (backend, name), kept, is_now in zip(_flags(torch), before.flags, now.flags, strict=True):
        if kept != is_now:
            setattr(backend, name, kept)
