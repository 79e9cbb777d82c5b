"""The device of this rank, and that of tensors in its collectives."""

import os

import torch
from torch import distributed as dist

from lfpo.config.errors import UserError


def device() -> torch.device:
    """This rank's GPU, made CUDA's current device, or the CPU where there is none. Raises UserError where a machine has
    fewer GPUs than ranks."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= gpus:
        raise UserError(
            f"{os.environ.get('LOCAL_WORLD_SIZE', local_rank + 1)} ranks on a machine with {gpus} "
            f"GPU{'s' if gpus > 1 else ''}: give torchrun --nproc_per_node {gpus}"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def collective_device() -> torch.device:
    """Where tensors must be for a collective: on this rank's GPU for NCCL, on the CPU for gloo."""
    return device() if dist.get_backend() == "nccl" else torch.device("cpu")
