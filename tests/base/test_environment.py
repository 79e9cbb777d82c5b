"""Settings of the process's memory."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from lfpo.base.environment import before_torch, keep_freed_memory

def faults(size=16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memoryview(bytearray(b"x") * (size << 20)).release()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before_torch()
returned = [faults(), faults()]
keep_freed_memory()
faults(), faults(64)
print(*returned, faults(), faults(64))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_a_training_process_uses_freed_memory_again():
    """16 MiB, freed and allocated again: new pages before keep_freed_memory, none after it. 64 MiB still go back."""
    out = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True).stdout
    first, again, kept, large = map(int, out.split())
    assert again > first / 2 > 10 * kept
    assert large > again
