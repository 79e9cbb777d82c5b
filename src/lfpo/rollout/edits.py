"""Rollouts whose sampler edits revealed tokens (SamplerConfig.editing_threshold), and how they are recorded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from lfpo.config.json import Json
from lfpo.core.active_rows import ActiveRows
from lfpo.core.hooks import DrawnTokens, Hook
from lfpo.core.trajectory import Trajectory, per_position
from lfpo.prompts.tokenizer import token_texts


@dataclass(kw_only=True)
class EditedTrajectory(Trajectory):
    """B rollouts with E edits at most. `with_edits` has W = C + E columns: first those of the positions, then those of
    the edits.

    revealed [B, C] int64: the tokens as they were revealed. reveal_step, confidence and entropy are theirs; `tokens`
    are what the edits have left.
    edit_position, edit_step, edit_token [B, E] int64: the edits of a row in the order of steps: the position, 0 to
    C - 1, the scheduled step and the new token. Rows with fewer than E edits end in position 0, step -1.
    edit_confidence, edit_entropy [B, E] float32: `confidence` and `entropy` of the new token.
    """

    revealed: torch.Tensor
    edit_position: torch.Tensor
    edit_step: torch.Tensor
    edit_token: torch.Tensor
    edit_confidence: torch.Tensor
    edit_entropy: torch.Tensor

    def with_edits(self, name: str) -> torch.Tensor:
        edits = getattr(self, f"edit_{name.removeprefix('reveal_')}")
        return torch.cat([getattr(self, name), edits], dim=1)

    def at_writes(self, value_BC: torch.Tensor) -> torch.Tensor:
        return torch.cat([value_BC, value_BC.gather(1, self.edit_position)], dim=1)

    def _at_positions(self, number_BE: torch.Tensor) -> torch.Tensor:
        """The largest of the numbers, -1 or more, of each position's edits, [B, C] int64; -1 where there are none."""
        return torch.full_like(self.tokens, -1).scatter_reduce(1, self.edit_position, number_BE, "amax")

    @property
    def last_step(self) -> torch.Tensor:
        """The reveal step of each position, or that of its last edit, [B, C] int64."""
        return torch.maximum(self.reveal_step, self._at_positions(self.edit_step))

    def written_by(self, first_B: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
        step_BW = self.with_edits("reveal_step")
        now_BC, now_BE = ((step_BW >= first_B[:, None]) & (step_BW <= last_B[:, None])).split(
            [self.tokens.shape[1], self.edit_step.shape[1]], dim=1
        )
        return now_BC | (self._at_positions(now_BE.long()) > 0)

    def _held_before(self, step_BC: torch.Tensor) -> torch.Tensor:
        """Which of the written tokens, in the order of `with_edits`, each position held when step_BC[b, c] began,
        [B, C] int64; at masked positions the one that is revealed there."""
        length = self.tokens.shape[1]
        before_BE = (self.edit_step >= 0) & (self.edit_step < step_BC.gather(1, self.edit_position))
        number_E = torch.arange(before_BE.shape[1], device=before_BE.device)
        latest_BC = self._at_positions(torch.where(before_BE, number_E, -1))
        return torch.where(latest_BC >= 0, length + latest_BC, torch.arange(length, device=step_BC.device))

    def tokens_before(self, step_B: torch.Tensor) -> torch.Tensor:
        held_BC = self._held_before(per_position(step_B).expand(self.tokens.shape))
        return torch.cat([self.revealed, self.edit_token], dim=1).gather(1, held_BC)

    @property
    def final_confidence(self) -> torch.Tensor:
        return self.with_edits("confidence").gather(1, self._held_before(self.last_step + 1))

    def written_until(self, last_B: torch.Tensor) -> torch.Tensor:
        return self.tokens_before(last_B + 1)

    def with_steps(self, step_BW: torch.Tensor) -> Trajectory:
        length = self.tokens.shape[1]
        return dataclasses.replace(self, reveal_step=step_BW[:, :length], edit_step=step_BW[:, length:])

    def recorded(self, b: int, tokenizer: object) -> Json:
        """`edits`: for each edited position of row b the tokens that it held, the revealed one first, each as [step,
        token id, text, confidence]."""
        one = self.rows(torch.tensor([b], device=self.tokens.device)).to("cpu")
        place = one.at_writes(torch.arange(one.tokens.shape[1])[None])
        token = torch.cat([one.revealed, one.edit_token], dim=1)
        columns = (place, one.with_edits("reveal_step"), token, one.with_edits("confidence"))
        held: dict[str, list[list[object]]] = {}
        for position, step, token_id, sure in zip(*(column[0].tolist() for column in columns), strict=True):
            if step >= 0:
                text = token_texts(tokenizer, [token_id])[0]
                held.setdefault(str(position), []).append([step, token_id, text, round(sure, 5)])
        return {"edits": {position: tokens for position, tokens in held.items() if len(tokens) > 1}}


class EditRecord(Hook):
    """The edits of B rows, numbered by `ActiveRows.row`. like: any int64 [B, C] on the model's device."""

    def __init__(self, like: torch.Tensor):
        self.revealed = torch.full_like(like, -1)  # the first tokens of edited positions, [B, C]
        self.numbers: list[torch.Tensor] = []  # [4, n] int64: row, position, step, new token
        self.scores: list[torch.Tensor] = []  # [2, n] float32: confidence and entropy of the new token

    def __call__(self, active: ActiveRows, drawn: DrawnTokens) -> None:
        """Record one forward's edits. On a GPU this waits for the device."""
        edit = torch.zeros_like(drawn.masked) if drawn.edit is None else drawn.edit
        row_N, column_N = at = edit.nonzero().unbind(-1)
        self.numbers.append(torch.stack([active.row[row_N], column_N, drawn.at[row_N], drawn.token[at]]))
        self.scores.append(torch.stack([drawn.confidence[at], drawn.entropy[at]]).float())
        held = self.revealed[active.row]
        self.revealed[active.row] = torch.where(edit & (held < 0), active.tokens, held)

    def added_to(self, trajectory: Trajectory, row_B: torch.Tensor) -> Trajectory:
        """The trajectory of finished rows, given their numbers, with their edits."""
        numbers, scores = torch.cat(self.numbers, dim=1), torch.cat(self.scores, dim=1)
        self.numbers, self.scores = [numbers], [scores]
        place_R = row_B.new_full((len(self.revealed),), -1)
        place_R[row_B] = torch.arange(len(row_B), device=row_B.device)
        place_N = place_R[numbers[0]]
        order = place_N.argsort(stable=True)[int((place_N < 0).sum()) :]  # a row's edits stay in the order of steps
        (_, position_N, step_N, token_N), scores = numbers[:, order], scores[:, order]
        counts = place_N[order].bincount(minlength=len(row_B)).tolist()

        def padded(value_N: torch.Tensor, fill: int = 0) -> torch.Tensor:
            return pad_sequence(value_N.split(counts), batch_first=True, padding_value=fill)

        first = self.revealed[row_B]
        return EditedTrajectory(
            **vars(trajectory),
            revealed=torch.where(first < 0, trajectory.tokens, first),
            edit_position=padded(position_N),
            edit_step=padded(step_N, -1),
            edit_token=padded(token_N),
            edit_confidence=padded(scores[0]),
            edit_entropy=padded(scores[1]),
        )
