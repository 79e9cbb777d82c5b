"""Reveal rules: what a rule gets (Proposal), what it decides (Reveal), and what the sampler must know of it (Rule)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lfpo.config.reveal import RuleKeys
from lfpo.core.active_rows import ActiveRows
from lfpo.core.pace import Plan
from lfpo.core.rng import uniform

# What a row's random numbers are for: drawing tokens, the rule's choices at one forward, the rule's choices for a row.
TOKENS, ORDER, PLAN = range(3)

# Scores [T] of T drawn tokens, from the probabilities [T, V] they are drawn from (after temperature, top_k and top_p;
# float64) and the tokens [T].
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Revealed:
    """The revealed positions of the active blocks, for rules that edit.

    editable [A, C] bool: the revealed completion positions of each row's active block. Proposal's token, confidence,
        entropy and score are meaningful at these positions too.
    shown [A, C] int64: the tokens of the rows before this step.
    post_step [A] int64: the number of this forward among those that began without a masked position in the block, from
        1; 0 if there were masked positions.
    """

    editable: torch.Tensor
    shown: torch.Tensor
    post_step: torch.Tensor


def revealed_of(active: ActiveRows, in_block: torch.Tensor, masked: torch.Tensor, eligible: torch.Tensor) -> Revealed:
    """The revealed positions of the active blocks `in_block`, of which `masked` are masked and `eligible` may be
    revealed, each [A, C] bool."""
    # A forward counts one step, so steps since the block's last mask was replaced count forwards without masks.
    since = active.clock - active.reveal_step.masked_fill(~in_block, -1).amax(-1)
    return Revealed(in_block & ~masked, active.tokens, torch.where(eligible.any(-1), 0, since))


@dataclass(frozen=True)
class Proposal:
    """One denoising step of the A rows in flight, after their forward. C = gen_length. Tensors are on the model's
    device.

    eligible [A, C] bool: the masked positions of each row's active block. Only these can be revealed; finished rows
        have none. The values below are meaningful at eligible positions only.
    token [A, C] int64: the drawn tokens, which a reveal commits.
    confidence [A, C] float64: probability of the drawn token at temperature 1 (`rule_confidence` of lfpo.core.draw).
    entropy [A, C] float64: entropy in nats of the prediction at temperature 1.
    score [A, C] float64: the rule's own score, see Rule; the confidence if the rule has none.
    block_step [A] int64: steps of the active block spent so far.
    counts [steps of a block] int64: positions that the schedule reveals at each step of a block; empty if the rule has
        no schedule.
    seed, nfe [A] int64: the row's seed and its forwards so far, which key the noise.
    revealed: only if the sampler edits (SamplerConfig.edits).
    """

    eligible: torch.Tensor
    token: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    score: torch.Tensor
    block_step: torch.Tensor
    counts: torch.Tensor
    seed: torch.Tensor
    nfe: torch.Tensor
    sampler: Any  # a SamplerConfig; the rule's `check` has seen to keys that may be None elsewhere
    revealed: Revealed | None = None

    def next_scheduled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next step of the block at which the schedule reveals something, and how many positions; [A] int64."""
        steps = torch.arange(len(self.counts), device=self.counts.device)
        pending = (self.counts > 0) & (steps >= self.block_step[:, None])
        at_step = pending.int().argmax(-1)
        return at_step, self.counts[at_step]

    def noise(self) -> torch.Tensor:
        """Uniform noise [A, C] float64 in [0, 1), new at each forward."""
        return uniform(self.seed[:, None], ORDER, self.nfe[:, None], self._columns())

    def fixed_noise(self) -> torch.Tensor:
        """Uniform noise [A, C] float64 in [0, 1), the same at all steps of a row."""
        return uniform(self.seed[:, None], PLAN, self._columns())

    def _columns(self) -> torch.Tensor:
        return torch.arange(self.eligible.shape[1], device=self.eligible.device)


class Reveal(NamedTuple):
    """What a rule decides. Every row with eligible positions must get at least one of them.

    positions [A, C] bool: the positions to reveal.
    at_step [A] int64: the step of the block at which they are revealed, Proposal.block_step or later. The steps in
        between are counted but run no forward, and so are the steps left over when the block is complete. None: the
        current step; the next block then starts as soon as this one is complete.
    edits [A, C] bool: revealed positions whose tokens are replaced by the drawn ones. unfinished [A] bool: blocks that
        are not complete even if none of their positions is masked any more. Both need Proposal.revealed; None: none.
    """

    positions: torch.Tensor
    at_step: torch.Tensor | None = None
    edits: torch.Tensor | None = None
    unfinished: torch.Tensor | None = None


@dataclass(frozen=True)
class Rule(RuleKeys):
    """A reveal rule and what the sampler needs to know about it: its keys, and

    reveal: the rule itself.
    score: None: the score is the confidence.
    plan: with it the device need not be asked while rows run. None: this is not known before a rollout.
    """

    reveal: Callable[[Proposal], Reveal]
    score: Score | None = None
    plan: Plan | None = None
