"""Reveal rules: what a rule gets (Proposal), what it decides (Reveal), and what the sampler must know of it (Rule).

Also the two plainest rules, and the pace of rows whose rule follows a plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lfpo.config.reveal import RuleKeys
from lfpo.config.sampler import SamplerConfig
from lfpo.core.noise import uniform

# What a row's random numbers are for: drawing tokens, the rule's choices at one forward, the rule's choices for a row.
TOKENS, ORDER, PLAN = range(3)


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


@dataclass(frozen=True)
class Proposal:
    """One denoising step of the A rows in flight, after their forward. C = gen_length. Tensors are on the model's
    device.

    eligible [A, C] bool: the masked positions of each row's active block. Only these can be revealed; finished rows
        have none. The values below are meaningful at eligible positions only.
    token [A, C] int64: the drawn tokens, which a reveal commits.
    confidence [A, C] float64: probability of the drawn token at temperature 1 (`sureness` of lfpo.core.draw).
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
    edits [A, C] bool: revealed positions whose tokens are replaced by the drawn ones. goes_on [A] bool: blocks that are
        not complete even if none of their positions is masked any more. Both need Proposal.revealed; None: none.
    """

    positions: torch.Tensor
    at_step: torch.Tensor | None = None
    edits: torch.Tensor | None = None
    goes_on: torch.Tensor | None = None


# Scores [T] of T drawn tokens, from the probabilities [T, V] they are drawn from (after temperature, top_k and top_p;
# float64) and the tokens [T].
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Called with the sampler, the schedule's counts (a list), the seeds of B rows, and the masked positions of each block
# of each row. Returns how many positions each forward reveals, as [row][block][forward], each above 0.
Plan = Callable[[SamplerConfig, Sequence[int], Sequence[int], Sequence[Sequence[int]]], list[list[list[int]]]]


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


def ranked(score_AC: torch.Tensor, eligible_AC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns in descending order of score, eligible ones first, and the rank of each column; both [A, C] int64.

    Ties go to the left.
    """
    order = score_AC.masked_fill(~eligible_AC, -math.inf).argsort(dim=-1, descending=True, stable=True)
    return order, order.argsort(dim=-1)


def best(score_AC: torch.Tensor, eligible_AC: torch.Tensor, count_A: torch.Tensor) -> torch.Tensor:
    """The count_A[a] eligible positions of each row with the highest score, [A, C] bool; ties go to the left."""
    return eligible_AC & (ranked(score_AC, eligible_AC)[1] < count_A[:, None])


def before_first(true_AC: torch.Tensor) -> torch.Tensor:
    """How many columns come before the first True one, [A, 1] int64; C in a row without one."""
    return (true_AC.int().cumsum(-1) == 0).sum(-1, keepdim=True)


# The rule of the paper's rollouts and that of its evaluations; the others are in lfpo.rollout.reveal.


def highest_score(step: Proposal) -> Reveal:
    """The positions with the best score: that of the rule, or the drawn token's confidence."""
    at_step, count = step.next_scheduled()
    return Reveal(best(step.score, step.eligible, count), at_step)


def threshold(step: Proposal) -> Reveal:
    """Positions with confidence >= threshold, and always each row's most confident one."""
    rank = ranked(step.confidence, step.eligible)[1]
    return Reveal(step.eligible & ((step.confidence >= step.sampler.threshold) | (rank == 0)))


# Where fewer positions are left than the schedule says, all of them are revealed. SDAR's code then writes another
# position again, which may be one of the prompt.


def scheduled_plan(
    sampler: SamplerConfig, counts: Sequence[int], seeds: Sequence[int], sizes: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Rule.plan of rules that reveal what the schedule says, or what is left in the block if that is less."""
    of_size = {size: _spent(counts, size) for row in sizes for size in row}
    return [[of_size[size] for size in row] for row in sizes]


def _spent(counts: Sequence[int], size: int) -> list[int]:
    revealed = []
    for count in counts:
        if count and size:
            revealed.append(min(count, size))
            size -= revealed[-1]
    return revealed


class Pace:
    """The forwards of rows whose reveal rule follows a plan (Rule.plan): masked positions and active block of each.

    counts: reveal_schedule. seeds, sizes: of each row, its seed, and the positions of each block.
    stops: whether rows stop at EOS. stores: whether a forward that stores it follows each block but the last. planned:
        whether forwards follow the rule's plan and these alone; over a causal context others come between.

    known: False where the rule has no plan, or where early_stop "confidence" commits blocks ahead of it.
    exact: whether the end of a row is known too; a row that stops at EOS may end sooner.
    """

    def __init__(
        self,
        sampler: SamplerConfig,
        rule: Rule,
        counts: Sequence[int],
        seeds: Sequence[int],
        sizes: Sequence[Sequence[int]],
        *,
        stops: bool,
        stores: bool = False,
        planned: bool = True,
    ):
        plan, self.size = rule.plan if planned else None, sampler.block_length or 0
        self.forwards = [0] * len(seeds)
        # Of each row, active block and masked positions before each forward, and once more after the last one.
        self.steps: list[list[tuple[int, int]]] = []
        self.known = plan is not None and not sampler.stops_at_confidence
        self.exact = self.known and not stops
        if plan is not None and self.known:
            plans = plan(sampler, counts, seeds, sizes)
            self.steps = [_steps(reveals, row, stores) for reveals, row in zip(plans, sizes, strict=True)]

    def advance(self, rows: Sequence[int]) -> int:
        """Count one forward of each row; returns the masked positions in their active blocks before it, or an upper
        bound."""
        masked = sum(masked for _, masked in self._at(rows)) if self.known else len(rows) * self.size
        for row in rows:
            self.forwards[row] += 1
        return masked

    def active(self, rows: Sequence[int]) -> list[int]:
        """The active block of each row, its last block if it has ended; only where `known`."""
        return [block for block, _ in self._at(rows)]

    def ended(self, rows: Sequence[int]) -> list[bool]:
        """Whether each row is finished; only where `exact`."""
        return [self.forwards[row] >= len(self.steps[row]) - 1 for row in rows]

    def _at(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        return [self.steps[row][min(self.forwards[row], len(self.steps[row]) - 1)] for row in rows]


def _steps(reveals: Sequence[Sequence[int]], sizes: Sequence[int], stores: bool) -> list[tuple[int, int]]:
    """(active block, masked positions in it) before each forward of a row and after the last, from the positions that
    each forward of each block reveals. stores: a forward that reveals nothing comes between two blocks."""
    steps: list[tuple[int, int]] = []
    for block, (revealed, masked) in enumerate(zip(reveals, sizes, strict=True)):
        if stores and block:
            steps.append((block, 0))
        for count in revealed:
            steps.append((block, masked))
            masked -= count
    return [*steps, (len(sizes) - 1, 0)]
