"""A CUDA stand-in: tensors in CPU memory that report the device `cuda` and may not be mixed with CPU tensors.

It raises where CUDA would (operands on two devices, `numpy` of GPU memory, a CPU generator), and code branches for GPUs
run. The arithmetic is the CPU's, so results can be compared. The mark is on a tensor's storage, so views, parameters
and `.data` share it, and gradients take it from their parameters. Operations inside a backward pass are not checked.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name

from lfpo.core import attention_kernels, fused

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
# Operations that may take tensors of two devices. Indexing has checks of its own.
CROSSING = {"copy_", "to", "type_as", "set_", "__set__", "_has_compatible_shallow_copy_type"}
INDEXING = {"__getitem__", "__setitem__", "index_put_"}
JOINING = {"cat", "concat", "stack"}
SCALARS = (int, float, str, slice, type(None))  # of them there are many, and they hold no tensor
READS = {"numpy", "__array__"}
# Operations that synchronise: Python needs a value or a number of elements.
WAITS = {
    "item",
    "tolist",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "nonzero",
    "masked_select",
    "equal",
    "unique",
}


class CudaStandIn(TorchFunctionMode):
    """Active inside `cuda_stand_in`. waits: how often an operation would synchronise with a real GPU. backends: the
    attention kernels that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        # Keyed by the storage's address; the weak reference keeps other storages from getting the same address.
        self.marked: dict[int, StorageWeakRef] = {}
        self.waits = 0
        self.backends: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        owner = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "__get__" and owner in ("device", "is_cuda", "is_cpu", "grad"):
            return self._attribute(owner, args[0], function)
        # deepcopy's second argument is the memo of earlier copies.
        tensors = list(_tensors((args[:1] if name == "__deepcopy__" else args, kwargs)))
        on_gpu = [t for t in tensors if self.has(t)]
        if name in READS and on_gpu:
            raise AssertionError(f"{name} of a tensor on the GPU")
        asked, args, kwargs = _asked_device(name, args, kwargs, self.has)
        by_mask = name in INDEXING and any(t.dtype == torch.bool for t in _tensors(args[1]))
        if on_gpu and (name in WAITS or by_mask or asked == CPU):
            self.waits += 1
        if on_gpu and name in INDEXING:
            self._check_index(function, args)
        elif on_gpu and asked is None and name not in CROSSING:
            self._check_mixture(function, tensors)
        if kwargs.get("generator") is not None and (on_gpu if asked is None else asked.type == "cuda"):
            raise AssertionError(f"{name} on the GPU with a CPU's generator")
        if name == "mm" and "out_dtype" in kwargs:  # a CPU has no such product
            out_dtype = kwargs.pop("out_dtype")
            args = tuple(x.to(out_dtype) for x in args)
        result = function(*args, **kwargs)
        target = bool(on_gpu) if asked is None else asked.type == "cuda"
        if asked is None and name in ("to", "type_as", "copy_", "__getitem__") and tensors:
            target = self.has(tensors[-1] if name == "type_as" else tensors[0])
        known = {_address(t) for t in tensors}
        moved = asked is not None and tensors and self.has(tensors[0]) != target
        for made in _tensors(result):
            if moved and _address(made) in known:  # `to` did nothing on the CPU; to or from a GPU it copies
                return self._copied(result, target)
            if _address(made) not in known:
                self._mark(made, target)
        return result

    def has(self, tensor: torch.Tensor) -> bool:
        mark = self.marked.get(_address(tensor))
        return mark is not None and not mark.expired()

    def _mark(self, tensor: torch.Tensor, on_gpu: bool) -> None:
        address = _address(tensor)
        if on_gpu:
            self.marked[address] = StorageWeakRef(tensor.untyped_storage())
        else:
            self.marked.pop(address, None)

    def _copied(self, tensor: torch.Tensor, on_gpu: bool) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            copy = tensor.clone()
        self._mark(copy, on_gpu)
        return copy

    def _attribute(self, owner: str, tensor: torch.Tensor, function: Any) -> Any:
        if owner == "grad":
            grad = function(tensor)
            if grad is not None and self.has(tensor):
                self._mark(grad, True)
            return grad
        if owner == "device":
            return GPU if self.has(tensor) else function(tensor)
        return self.has(tensor) == (owner == "is_cuda")

    def _check_mixture(self, function: Any, tensors: list[torch.Tensor]) -> None:
        """All tensors must be on one device, but a CPU scalar may be combined (not concatenated) with GPU tensors."""
        joined = getattr(function, "__name__", "") in JOINING
        checked = [t for t in tensors if t.device.type != "meta" and (joined or t.dim() or self.has(t))]
        if len({self.has(t) for t in checked}) > 1:
            self._refuse(function, tensors)

    def _check_index(self, function: Any, args: tuple[Any, ...]) -> None:
        """A CPU index may select from a GPU tensor, not the reverse; assigned values must be on the tensor's device."""
        index, values = list(_tensors(args[1])), list(_tensors(args[2:]))
        if any(self.has(t) for t in index) and not self.has(args[0]):
            self._refuse(function, [args[0], *index])
        if index:  # assignment to a slice copies from any device
            self._check_mixture(function, [args[0], *values])

    def _refuse(self, function: Any, tensors: list[torch.Tensor]) -> None:
        shapes = [f"{tuple(t.shape)} on {'cuda' if self.has(t) else 'cpu'}" for t in tensors]
        raise AssertionError(f"{resolve_name(function) or function}: {', '.join(shapes)}")


def _address(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            if not isinstance(item, SCALARS):
                yield from _tensors(item)


def _asked_device(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], has: Callable[[torch.Tensor], bool]
) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
    """The device that a call names, and its arguments with that device replaced by the CPU."""
    if name == "cpu":
        return CPU, args, kwargs
    kwargs.pop("pin_memory", None)
    asked = kwargs.get("device")
    if name == "to" and len(args) > 1 and args[1] is not None and not isinstance(args[1], torch.dtype):
        other = args[1]
        asked = (GPU if has(other) else CPU) if isinstance(other, torch.Tensor) else torch.device(other)
        args = (args[0], *(() if isinstance(other, torch.Tensor) else (CPU,)), *args[2:])
        if isinstance(other, torch.Tensor):
            kwargs["dtype"] = other.dtype
    if asked is None:
        return None, args, kwargs
    asked = torch.device(asked)
    if "device" in kwargs and asked.type == "cuda":
        kwargs["device"] = CPU
    return asked, args, kwargs


@contextlib.contextmanager
def cuda_stand_in() -> Iterator[CudaStandIn]:
    """Inside the block Python sees a machine with one GPU."""
    with contextlib.suppress(ImportError):
        import bitsandbytes  # noqa: F401  (imported before, because its import looks for CUDA kernels)
    autocast, enabled, autocast_dtype = torch.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype

    def on_cpu(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu", *args, **kwargs)

    def kernel(chosen: Any) -> contextlib.AbstractContextManager[None]:
        mode.backends.append(chosen)
        return contextlib.nullcontext()  # the CPU has none of them

    with pytest.MonkeyPatch.context() as patch, CudaStandIn() as mode:
        patch.setattr(torch, "autocast", on_cpu)
        patch.setattr(torch, "is_autocast_enabled", lambda kind="cpu": enabled("cpu"))
        patch.setattr(torch, "get_autocast_dtype", lambda kind: autocast_dtype("cpu"))
        patch.setattr(attention_kernels, "sdpa_kernel", kernel)
        patch.setattr(
            fused, "kernel_on", lambda device: None
        )  # tests/core/test_kernel.py runs it in Triton's interpreter
        # Optimisers ask for it, and a build of torch with CUDA would then look for a driver.
        patch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(torch.cuda, "get_device_name", lambda *_: "CUDA stand-in")
        patch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=2**36))
        patch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**36, 2**36))
        yield mode
