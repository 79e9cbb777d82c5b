"""Hooks of a rollout: what looks at every forward, and may add to the trajectory."""

from dataclasses import dataclass

import torch

from lfpo.core.active_rows import ActiveRows
from lfpo.core.trajectory import Trajectory


@dataclass(frozen=True)
class DrawnTokens:
    """The tokens that a forward of the A rows in flight drew, and the reveal that follows.

    alive [A] bool: rows for which the forward counts; the others are finished, or only store a block.
    masked [A, C] bool: the masked positions of alive rows.
    token [A, C] int64, confidence, entropy [A, C] float64: what was drawn, 0 where nothing was.
    at [A] int64: the scheduled step of the reveal. edit [A, C] bool: revealed positions that take the drawn token.
    """

    alive: torch.Tensor
    masked: torch.Tensor
    token: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    at: torch.Tensor
    edit: torch.Tensor | None


class Hook:
    """Looks at every forward of a rollout, and may add what it found to the trajectory."""

    def __call__(self, active: ActiveRows, drawn: DrawnTokens) -> None:
        """Called after the draw, before the rows change. It may set `active.seed`, for the forwards that follow."""

    def added_to(self, trajectory: Trajectory, row_B: torch.Tensor) -> Trajectory:
        """The trajectory of finished rows, given their numbers [B], with what was found."""
        return trajectory
