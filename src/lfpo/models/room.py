"""Whether a checkpoint's weights fit into memory or onto a disk, asked before they are loaded or written."""

import math
import shutil
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # accelerate needs it too
import torch
from safetensors import SafetensorError, safe_open

from lfpo.base.errors import UserError

GIB = 2**30


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of a checkpoint's weights in `dtype`, from the headers of its files."""
    numbers = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            numbers += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return numbers * dtype.itemsize


def check_memory(folder: Path, dtype: torch.dtype, device: torch.device | str) -> None:
    """Raise UserError where the weights of a checkpoint in `dtype` are larger than the device's free memory."""
    try:
        needed = weight_bytes(folder, dtype)
    except (OSError, SafetensorError):
        return  # load_model says what is wrong with the file
    on_gpu = torch.device(device).type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else psutil.virtual_memory().available
    if needed > free:
        advice = "choose a smaller model" if dtype == torch.bfloat16 else "give --dtype bfloat16, which halves them"
        raise UserError(
            f"{folder}: its weights take {needed / GIB:.1f} GiB in {str(dtype).removeprefix('torch.')}, and "
            f"{free / GIB:.1f} GiB of memory are free on this {'GPU' if on_gpu else 'machine'}; {advice}"
        )


def check_disk(folder: Path, needed: int) -> None:
    """Raise UserError where the disk of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: the model takes {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free on this disk; free "
            "disk space, or write to another disk"
        )
