"""A worker of a Ray engine that fails where it is told to."""

import os
import signal
from typing import Any

from lfpo.core.engine import Request
from lfpo.core.trajectory import Trajectory
from lfpo.ray.engine import Worker

DEADLY = 1_001  # the first seed of a unit


class Told(Worker):
    """Is killed, as by a system that has no memory left."""

    def sample(self, version: Any, weights: Any, unit: Request) -> Trajectory:
        if unit.seeds[0] == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(version, weights, unit)
