"""LFPO in which one process fails, once."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lfpo.core.lfpo import LFPO
from lfpo.core.measures import Measures
from lfpo.core.predictions import Predictions


@dataclass(frozen=True)
class Failing(LFPO):
    """Process 1 fails when `after` exists, and leaves `marker` so as to do it only once."""

    after: str = ""
    marker: str = ""
    how: Literal["killed", "out of memory"] = "killed"

    def loss(self, predictions: Predictions, signal_B: torch.Tensor) -> tuple[torch.Tensor, Measures]:
        if os.environ["RANK"] == "1" and Path(self.after).exists() and not Path(self.marker).exists():
            Path(self.marker).touch()
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().loss(predictions, signal_B)
