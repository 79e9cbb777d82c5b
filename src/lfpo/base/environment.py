"""Package versions and hardware, saved with every result because numbers depend on them."""

import atexit
import contextlib
import ctypes
import importlib.metadata
import os
import platform
import sys
from typing import NoReturn

from lfpo.config.version import VERSION

is_command = False  # whether this process is the `lfpo` command, which lfpo.cli.command_line.run says


def versions() -> dict[str, str]:
    """Versions of lfpo, torch, transformers and Python; loads neither torch nor transformers."""
    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"lfpo": VERSION, **packages, "python": platform.python_version()}


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # of mallopt, in glibc's malloc.h
SMALL_MODEL = 10**9  # parameters, below which a process keeps the memory it has freed
_returns_memory = False  # whether `before_torch` made glibc return freed blocks


def before_torch() -> None:
    """Change three settings of this process, before torch is loaded. A value set in the environment stays.

    Waiting OpenMP threads sleep (OMP_WAIT_POLICY): a thread that spins takes time from other processes. torch's CPU
    tensors lie in huge pages (THP_MEM_ALLOC_ENABLE), which the system hands out several times as fast. glibc returns
    freed blocks of 2 MiB or more to the system (MALLOC_MMAP_THRESHOLD_); without this, quantising to 4 bits left 50 %
    more memory in use.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    global _returns_memory
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**21)
        _returns_memory = True


def keep_freed_memory(parameters: int) -> None:
    """Let glibc keep freed blocks from here on, if `before_torch` made it return them and the loaded model is small.

    Steps and forwards allocate the same sizes again and again. On a CPU new pages take 10 to 20 % of a fine-tuning step
    of 135 M parameters. A large model gains little, and kept blocks would raise its peak above its plan.
    """
    if _returns_memory and parameters < SMALL_MODEL:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def end_process(code: int) -> NoReturn:
    """End the command once its last line is written. Python would first wait for threads of the user's functions, of
    which one that hangs would keep the process for ever."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more, or it is closed
            stream.flush()
    os._exit(code)


def drop_output() -> None:
    """Send standard output nowhere from here on, with what is not written yet, which Python would report at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
