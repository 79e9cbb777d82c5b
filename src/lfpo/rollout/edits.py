"""The edits of a rollout: revealed tokens that the sampler replaced, as they are recorded while it runs."""

from __future__ import annotations

import dataclasses

import torch

from lfpo.rollout.rows import ActiveRows, Drawing, Hook
from lfpo.rollout.trajectory import Trajectory


class EditRecord(Hook):
    """The edits of B rows, numbered by `ActiveRows.row`."""

    def __init__(self, rows: int):
        self.rows = rows
        self.numbers: list[torch.Tensor] = []  # [5, n] int64: row, position, step, old token, new token
        self.scores: list[torch.Tensor] = []  # [2, n] float32: confidence and entropy of the new token

    def __call__(self, active: ActiveRows, drawn: Drawing) -> None:
        """Record one forward's edits. On a GPU this waits for the device."""
        edit = torch.zeros_like(drawn.masked) if drawn.edit is None else drawn.edit
        row_N, column_N = edit.nonzero().unbind(-1)
        at = (row_N, column_N)
        self.numbers.append(
            torch.stack([active.row[row_N], column_N, drawn.at[row_N], active.tokens[at], drawn.token[at]])
        )
        self.scores.append(torch.stack([drawn.confidence[at], drawn.entropy[at]]).float())

    def added_to(self, trajectory: Trajectory, row_B: torch.Tensor) -> Trajectory:
        """The trajectory of finished rows, given their numbers, with their edits."""
        numbers, scores = torch.cat(self.numbers, dim=1), torch.cat(self.scores, dim=1)
        self.numbers, self.scores = [numbers], [scores]
        place_R = torch.full((self.rows,), -1, device=row_B.device)
        place_R[row_B] = torch.arange(len(row_B), device=row_B.device)
        own = place_R[numbers[0]] >= 0
        numbers, scores = numbers[:, own], scores[:, own]
        order = place_R[numbers[0]].argsort(stable=True)  # a row's edits stay in the order of steps
        (row_N, position_N, step_N, old_N, new_N), scores = numbers[:, order], scores[:, order]
        place_N = place_R[row_N]
        count_B = place_N.bincount(minlength=len(row_B))
        column_N = torch.arange(len(place_N), device=place_N.device) - (count_B.cumsum(0) - count_B)[place_N]
        shape = (len(row_B), int(count_B.max()))

        def padded(value_N: torch.Tensor, fill: int = 0) -> torch.Tensor:
            return value_N.new_full(shape, fill).index_put((place_N, column_N), value_N)

        return dataclasses.replace(
            trajectory,
            revealed=_before_first(trajectory.tokens, place_N, position_N, old_N),
            edit_position=padded(position_N),
            edit_step=padded(step_N, -1),
            edit_token=padded(new_N),
            edit_confidence=padded(scores[0]),
            edit_entropy=padded(scores[1]),
        )


def _before_first(
    tokens: torch.Tensor, row_N: torch.Tensor, position_N: torch.Tensor, old_N: torch.Tensor
) -> torch.Tensor:
    """The tokens [B, C] before the first of N edits of each position, which are in the order of steps."""
    own = torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)
    source = torch.arange(len(old_N), device=tokens.device) + tokens.numel()
    never = tokens.numel() + len(old_N)
    first = torch.full_like(own, never).flatten().scatter_reduce(0, own[row_N, position_N], source, "amin")
    return torch.cat([tokens.flatten(), old_N])[torch.where(first < never, first, own.flatten())].view_as(tokens)
