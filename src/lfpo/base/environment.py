"""Versions and the machine: what decides numbers, written beside every result."""

from __future__ import annotations

import os
import platform

import torch

from lfpo.base.version import VERSION


def versions() -> dict[str, str]:
    """Versions of what decides numbers."""
    import transformers

    return {
        "lfpo": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def describe_environment() -> str:
    """The machine in a few words: device, threads, platform."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return f"{device}, {torch.get_num_threads()} of {os.cpu_count()} threads"
