"""Trajectories: a lossless record of what the sampler did, as final tokens and the step that revealed each.

The state before scheduled step t shows every completion token revealed earlier and masks the rest. No states are
stored. A revealed token stays as it is, unless the sampler edits: then the trajectory is an EditedTrajectory (see
lfpo.rollout.edits), which overrides what differs. A step *writes* the tokens that it reveals, and those that it puts in
the place of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch.nn import functional as F

from lfpo.config.json import Json
from lfpo.core.completions import Completions, SpecialTokens, tensor_fields

T = TypeVar("T", bound="Trajectory")

# What trajectories may hold beside tokens, and how an error calls it. Objectives name these in `needs`. The first three
# are fields of Trajectory.
GIVES = {
    "reveal_step": "the step that revealed each token",
    "confidence": "the probability of each token when it was revealed",
    "entropy": "the entropy of the prediction each token was drawn from",
    "left_to_right": "tokens revealed one at a time from left to right (sampler.remasking sequential without steps)",
    "forwards": "the forwards of each rollout",
    "edits": "the edits of revealed tokens",
    "variant": "rows that are denoised as it says (Request.variant)",
}


@dataclass
class Trajectory(Completions):
    """B rollouts, and the states that their samplers went through."""

    asks_about_all: ClassVar[bool] = False
    """Whether a noised state asks about all tokens, because nothing shows which of them are noised."""

    def scored(self, after_eos: bool) -> torch.Tensor:
        """Positions that an objective scores [B, C]: `until_eos`, or with `after_eos` all that were revealed."""
        return self.was_revealed if after_eos else self.until_eos

    def with_edits(self, name: str) -> torch.Tensor:
        """A field of every written token, [B, W]: reveal_step, confidence or entropy. W is C without edits."""
        value: torch.Tensor = getattr(self, name)
        return value

    def at_writes(self, value_BC: torch.Tensor) -> torch.Tensor:
        """The values of the positions of every written token, in the order of `with_edits`."""
        return value_BC

    @property
    def last_step(self) -> torch.Tensor:
        """The step that wrote each final token, [B, C] int64."""
        return self.reveal_step

    def masked_before(self, step_B: torch.Tensor) -> torch.Tensor:
        """Which completion positions were masked when step_B[b] began, [B, C] bool. step_B: one a row, or [B, C], one a
        position."""
        step_BC = per_position(step_B)
        return (self.reveal_step >= step_BC) | (self.reveal_step < 0)

    def pending_before(self, step_B: torch.Tensor) -> torch.Tensor:
        """Which positions were still to be written when step_B[b] began, [B, C] bool: the masked ones, and those that
        were edited at that step or later. step_B: as for `masked_before`."""
        return self.masked_before(step_B) | (self.last_step >= per_position(step_B))

    def written_by(self, first_B: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
        """Positions that the steps first_B[b] to last_B[b], both included, wrote to, [B, C] bool."""
        return (self.reveal_step >= first_B[:, None]) & (self.reveal_step <= last_B[:, None])

    def tokens_before(self, step_B: torch.Tensor) -> torch.Tensor:
        """The tokens that the revealed positions held when step_B[b] began, [B, C] int64; at masked positions the token
        that is revealed there. step_B: as for `masked_before`."""
        return self.tokens

    @property
    def final_confidence(self) -> torch.Tensor:
        """`confidence` of the final tokens, [B, C] float32: when they were written."""
        return self.confidence

    def written_until(self, last_B: torch.Tensor) -> torch.Tensor | None:
        """The tokens after step last_B[b], [B, C] int64, to label what the steps until then wrote; None where nothing
        is edited, so that these are the final tokens."""
        return None

    def state_before(self, step_B: torch.Tensor) -> torch.Tensor:
        """The completion that the sampler saw when step_B[b] began, [B, C] int64."""
        return self.tokens_before(step_B).masked_fill(self.masked_before(step_B), self.mask_id)

    def as_visited(self, views: Any, step_B: torch.Tensor) -> Any:
        """A hook of trajectories whose states are more than their tokens: the given views of `state_before`
        (lfpo.core.views), as a kind that holds the rest, too. step_B: as for `masked_before`."""
        return views

    def recorded(self, b: int, tokenizer: object) -> Json:
        """What the record of row b (lfpo.train.records) holds besides."""
        return {}

    def revised_states(self) -> list[tuple[str, list[int], list[int]]] | None:
        """Row 0 where its tokens are revised: (name of a state, its tokens, the final tokens there). None: a revealed
        token stays, so that `state_before` shows how it came about."""
        return None

    @property
    def block_BC(self) -> torch.Tensor:
        """The block of each completion position, [B, C] int64, counted from the prompt's first token, or over a causal
        context from the completion's; all 0 where there are no blocks."""
        if self.structure.block_length is None:
            return torch.zeros_like(self.tokens)
        column_C = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        if self.structure.causal:
            return (column_C // self.structure.block_length).expand_as(self.tokens)
        return (self.prompt_mask.sum(-1, keepdim=True) + column_C) // self.structure.block_length

    @property
    def from_context(self) -> torch.Tensor | None:
        """The first position of each block, [B, C] bool, where the causal context before the block predicts it
        (SamplerConfig.first_token): it is never masked when others of the block are predicted. None: there are none."""
        size = self.structure.block_length
        if not self.structure.causal or size is None or self.sampler.first_token == "masked":
            return None
        return (torch.arange(self.tokens.shape[1], device=self.tokens.device) % size == 0).expand_as(self.tokens)

    @property
    def visited_blocks(self) -> torch.Tensor:
        """Positions of blocks that the sampler came to, [B, C] bool; where there are no blocks, all."""
        block_BC = self.block_BC
        last_B = block_BC.masked_fill(self.reveal_step < 0, -1).amax(-1)
        return (block_BC <= last_B[:, None]) | (self.structure.block_length is None)

    def with_steps(self, step_BW: torch.Tensor) -> Trajectory:
        """The same rollouts with other steps of the written tokens, in the order of `with_edits`."""
        return dataclasses.replace(self, reveal_step=step_BW)

    def in_rounds(self) -> Trajectory:
        """The same rollouts, with each block's steps counted by themselves: a written token's step is the number of
        earlier steps that wrote something in its block. Round r is the r-th such step of every block. One forward in
        the doubled layout replays a round, because no block sees another one's noised tokens.

        The trajectory itself where there are no blocks.
        """
        if self.structure.block_length is None:
            return self
        # Sorted, the keys of a block's distinct steps stand together: a key's rank less its block's first is its round.
        step_BW, block_BW = self.with_edits("reveal_step"), self.at_writes(self.block_BC)
        row_B1 = torch.arange(len(self), device=block_BW.device)[:, None]
        start_BW = (row_B1 * (block_BW.amax() + 1) + block_BW) * (step_BW.amax() + 1)
        distinct = (start_BW + step_BW)[step_BW >= 0].unique()
        rank_BW = torch.searchsorted(distinct, start_BW + step_BW) - torch.searchsorted(distinct, start_BW)
        return self.with_steps(torch.where(step_BW >= 0, rank_BW, -1))

    def scored_steps(self, after_eos: bool = False) -> torch.Tensor:
        """The step of every written token, in the order of `with_edits`; -1 at positions that are not `scored`."""
        return self.with_edits("reveal_step").masked_fill(~self.at_writes(self.scored(after_eos)), -1)

    def distinct_steps(self, after_eos: bool = False) -> list[torch.Tensor]:
        """For each row, its N distinct steps that wrote to a scored position (see `scored`), ascending, [N] int64 on
        the CPU."""
        return [torch.unique(step_W[step_W >= 0]) for step_W in self.scored_steps(after_eos).cpu()]


def per_position(step_B: torch.Tensor) -> torch.Tensor:
    """Steps of rows [B] or of positions [B, C] as [B, 1] or [B, C]."""
    return step_B[:, None] if step_B.dim() == 1 else step_B


def of_completions(
    prompt_ids: torch.Tensor,
    prompt_mask: torch.Tensor,
    tokens: torch.Tensor,
    reveal_step: torch.Tensor,
    *,
    mask_id: int,
    eos_id: int,
    **changes: Any,
) -> Trajectory:
    """Rollouts of given completions that no sampler made, with confidence 1 and entropy 0, in no forwards.

    changes: sampler, and other fields of Trajectory that differ.
    """
    sure, none = torch.ones(tokens.shape), torch.zeros(len(tokens), dtype=torch.long)
    defaults: Json = {"confidence": sure, "entropy": 1 - sure, "scheduled_steps": reveal_step.amax(-1) + 1}
    defaults |= {"nfe": none, "queries": none, "special": SpecialTokens(mask_id, eos_id)}
    return Trajectory(prompt_ids, prompt_mask, tokens, reveal_step, **defaults | changes)


def join(parts: Sequence[T], pad_id: int) -> T:
    """Trajectories of one sampler as one, in order, with prompts left-padded to a common width and edits padded to a
    common number."""
    width = max(p.prompt_ids.shape[1] for p in parts)
    edits = max(p.with_edits("reveal_step").shape[1] - p.tokens.shape[1] for p in parts)

    def fitted(name: str, value: torch.Tensor) -> torch.Tensor:
        if name.startswith("edit_"):
            return F.pad(value, (0, edits - value.shape[1]), value=-1 if name == "edit_step" else 0)
        fill = {"prompt_ids": pad_id, "prompt_mask": 0}.get(name)
        return value if fill is None else F.pad(value, (width - value.shape[1], 0), value=fill)

    joined: Json = {
        name: torch.cat([fitted(name, getattr(p, name)) for p in parts]) for name in tensor_fields(parts[0])
    }
    return dataclasses.replace(parts[0], **joined)
