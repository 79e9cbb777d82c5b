"""Trajectories of canvases, whose tokens are revised: what each canvas held before each of its steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from lfpo.config.json import Json
from lfpo.contrib.canvases.noise import CanvasViews, conditioned
from lfpo.core.trajectory import Trajectory, per_position
from lfpo.core.views import Views

NEVER = -1  # in `canvases`: the canvas had fewer steps


@dataclass
class CanvasTrajectory(Trajectory):
    """Rollouts whose tokens are revised: the tokens before a step are not those of the end.

    canvases [B, N, C] int32: what each canvas of a row held before its n-th step, N = max_denoising_steps; NEVER where
        it had fewer. All canvases stand side by side, so state n is one input of the doubled layout.
    accepted [B, N, C] bool: the positions whose drawn tokens the step kept: what stands there in the next canvas. False
        in a canvas's last step, whose draws are not used.
    entropies [B, N, C] float32: of each step's predictions, in nats at temperature 1.
    reveal_step is the last step of the position's canvas, in which its tokens became final. confidence and entropy are
    those of that step.

    `with_edits` has W = N C columns, those of a step side by side: what the step accepted, and all of the last step.
    """

    asks_about_all = True  # nothing shows which tokens are noised

    canvases: torch.Tensor = field(kw_only=True)
    accepted: torch.Tensor = field(kw_only=True)
    entropies: torch.Tensor = field(kw_only=True)

    @property
    def steps_of_canvas(self) -> torch.Tensor:
        """Steps of the canvas of each position, [B, C] int64."""
        return (self.canvases != NEVER).sum(1)

    def in_rounds(self) -> Trajectory:
        return dataclasses.replace(self, reveal_step=self.steps_of_canvas - 1)

    def with_edits(self, name: str) -> torch.Tensor:
        if name == "entropy":
            return self.entropies.flatten(1)
        if name != "reveal_step":
            raise NotImplementedError(f"{name} of each step is not kept")
        step_BNC, last_B1C = self._steps, self.reveal_step[:, None]
        written = self.accepted | ((step_BNC == last_B1C) & (step_BNC >= 0))
        return step_BNC.masked_fill(~written, -1).flatten(1)

    @property
    def _steps(self) -> torch.Tensor:
        """The number of each step of a position's canvas, [B, N, C] int64; -1 where it had fewer."""
        first_BC = self.reveal_step - self.steps_of_canvas + 1
        number_N1 = torch.arange(self.canvases.shape[1], device=first_BC.device)[:, None]
        return (first_BC[:, None] + number_N1).masked_fill(self.canvases == NEVER, -1)

    def at_writes(self, value_BC: torch.Tensor) -> torch.Tensor:
        return value_BC.repeat(1, self.canvases.shape[1])

    def masked_before(self, step_B: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(self.tokens, dtype=torch.bool)

    def written_by(self, first_B: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
        step_BNC = self._steps
        between = (step_BNC >= first_B[:, None, None]) & (step_BNC <= last_B[:, None, None])
        return (self.accepted & between).any(1)

    def tokens_before(self, step_B: torch.Tensor) -> torch.Tensor:
        number_BC = per_position(step_B) - (self.reveal_step - self.steps_of_canvas + 1)
        began = number_BC.clamp(0, self.canvases.shape[1] - 1)
        held_BC = self.canvases.gather(1, began[:, None]).squeeze(1).long()
        return torch.where((number_BC >= self.steps_of_canvas) | (held_BC == NEVER), self.tokens, held_BC)

    def written_until(self, last_B: torch.Tensor) -> torch.Tensor:
        return self.tokens_before(last_B + 1)

    def as_visited(self, views: Views, step_B: torch.Tensor) -> CanvasViews:
        """Conditioned on the canvas before that of `tokens_before`, at the temperature of its step; not conditioned in
        a canvas's first step and after its last one."""
        step_BC = per_position(step_B)
        number_BC = step_BC - (self.reveal_step - self.steps_of_canvas + 1)
        canvas, steps = self.sampler.canvas, self.canvases.shape[1]
        values = torch.tensor([canvas.temperature(n) for n in range(steps)], device=step_BC.device)
        has_before = (number_BC > 0) & self.pending_before(step_BC)
        temperature_BC = torch.where(has_before, values[(number_BC - 1).clamp(0, steps - 1)], 0.0)
        before = torch.cat([self.prompt_ids, self.tokens_before(step_BC - 1)], dim=1)
        return conditioned(views, before, F.pad(temperature_BC, (self.prompt_ids.shape[1], 0)))

    @property
    def from_context(self) -> None:
        return None

    def recorded(self, b: int, tokenizer: object) -> Json:
        """`canvases`: the token ids up to the completion's length before the n-th step of each canvas, NEVER where a
        canvas had fewer."""
        steps, length = int(self.steps_of_canvas[b].max()), int(self.lengths[b])
        return {"canvases": self.canvases[b, :steps, :length].tolist()}

    def revised_states(self) -> list[tuple[str, list[int], list[int]]]:
        size = self.structure.block_length or self.tokens.shape[1]
        held = self.canvases[0].unflatten(1, (-1, size)).transpose(0, 1)
        return [
            (
                f"canvas {number + 1} step {step + 1}",
                held[number, step].tolist(),
                self.tokens[0, number * size :][:size].tolist(),
            )
            for number, step in (held[..., 0] != NEVER).nonzero().tolist()
        ]
