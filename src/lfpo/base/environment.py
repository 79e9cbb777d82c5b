"""Package versions and hardware, saved with every result because numbers depend on them."""

import os
import platform

from lfpo.base.version import VERSION


def versions() -> dict[str, str]:
    """Versions of lfpo, torch, transformers and Python."""
    import torch
    import transformers

    return {
        "lfpo": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def use_threads(number: int) -> None:
    """Set the CPU threads of torch (0: leave torch's default)."""
    import torch

    if number:
        torch.set_num_threads(number)


def describe_environment() -> str:
    """Device and CPU threads, in one line."""
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return f"{device}, {torch.get_num_threads()} of {os.cpu_count()} threads"
