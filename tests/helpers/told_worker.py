"""A worker of a Ray engine that fails where it is told to."""

import os
import signal
from typing import Any

import torch

from lfpo.core.engine import Request
from lfpo.core.trajectory import Trajectory
from lfpo.ray.engine import Worker

FULL, DEADLY = 1_000, 1_001  # the first seed of a unit


class Told(Worker):
    """Has no memory for a unit (FULL), or is killed, as by a system that has no memory left (DEADLY)."""

    def sample(self, version: Any, weights: Any, unit: Request) -> Trajectory:
        if unit.seeds[0] == FULL:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if unit.seeds[0] == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(version, weights, unit)
