"""One step of the rows in flight: tokens are drawn, and a reveal rule (lfpo.core.rule) says which of them stay."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lfpo.config.sampler import Sampler
from lfpo.core.active_rows import ActiveRows
from lfpo.core.draw import Drawn, draw_from_logits, guided
from lfpo.core.forward import Forward
from lfpo.core.hooks import DrawnTokens, Hook
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.rng import uniform
from lfpo.core.rule import TOKENS, Proposal, Reveal, Rule, Score, revealed_of

# Elements of the logits that one product with the head makes. On a GPU 2,048 positions of a large vocabulary, because
# each product reads the whole head. On a CPU not less: glibc's heap serves tensors under 32 MiB and fragments; at 2**21
# the same rollout took ten times the memory.
LOGIT_ELEMENTS = {"cpu": 2**24, "cuda": 2**28}
# Elements of them that are drawn from at once, which takes a few more tensors of that size.
CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**26}


def ranked(score_AC: torch.Tensor, eligible_AC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns in descending order of score, eligible ones first, and the rank of each column; both [A, C] int64.

    Ties go to the left.
    """
    order = score_AC.masked_fill(~eligible_AC, -math.inf).argsort(dim=-1, descending=True, stable=True)
    return order, order.argsort(dim=-1)


def threshold(step: Proposal) -> Reveal:
    """Positions with confidence >= threshold, and always each row's most confident one. The other rules are in
    lfpo.rollout.reveal."""
    rank = ranked(step.confidence, step.eligible)[1]
    return Reveal(step.eligible & ((step.confidence >= step.sampler.threshold) | (rank == 0)))


@dataclass(frozen=True)
class Denoiser:
    """What one forward does to the rows in flight.

    sampler: with its lengths filled in. counts: its reveal_schedule, on the model's device. forward: runs the model.
    """

    model: MaskedDiffusionLM
    sampler: Sampler
    rule: Rule
    counts: torch.Tensor
    hooks: Sequence[Hook]
    forward: Forward

    def step(self, active: ActiveRows, hidden: list[torch.Tensor], count: int) -> None:
        """Draw tokens, reveal and edit those that the rule picks, and move each row's clocks on. Finished rows do not
        change, and rows whose forward stored a block only become ready for the next one.

        hidden: what `forward` gave: hidden states [A, block_length, D] of each row's active block, or of the whole
            completion (two such tensors with guidance). Of rows that are storing the first state alone has a meaning.
        count: the masked positions of the active blocks, or an upper bound.
        """
        sampler = self.sampler
        # 1. Which positions may be revealed. A forward that stores a block reveals nothing, but over a causal context
        # it is also the one that predicts the first token of the next block (`leading`).
        leading = active.storing & self.forward.reveals_first_token
        alive = ~active.done & (leading | ~active.storing)
        place = torch.arange(active.tokens.shape[1], device=alive.device) + active.offset[:, None]  # in row's blocks
        in_block = (place // sampler.block_length == active.block[:, None]) & alive[:, None]
        masked = (active.tokens == self.model.mask_id) & alive[:, None]
        unrevealed = in_block & masked
        eligible = unrevealed & (~leading[:, None] | (place % sampler.block_length == 0))
        # 2. Where tokens are drawn: at what may be revealed; at all masks, where a hook keeps predictions of them; with
        # edits also at revealed positions.
        drawn, revealed = eligible, None
        if self.forward.whole_completion:
            drawn, count = masked, masked.numel()
        if sampler.edits:
            drawn, revealed = in_block, revealed_of(active, in_block, masked, eligible)
        token, confidence, entropy, rule_confidence, score = self._draw(active, hidden, drawn, count)
        # 3. The rule picks positions, and the step of the schedule at which they are revealed (`at_step`).
        step = Proposal(
            eligible=eligible,
            token=token,
            confidence=rule_confidence,
            entropy=entropy,
            score=score,
            block_step=active.block_step,
            counts=self.counts,
            seed=active.seed,
            nfe=active.nfe,
            sampler=sampler,
            revealed=revealed,
        )
        positions, at_step, edit, unfinished = self.rule.reveal(step)
        reveal, scheduled = positions & eligible, at_step is not None
        at_step = active.block_step if at_step is None else torch.where(leading, active.block_step, at_step)
        edit = None if edit is None or revealed is None else edit & revealed.editable
        # 4. Write tokens, and move the clocks on, also over the schedule's steps that reveal nothing: these run no
        # forward. A first token from the causal context is no step of its block's schedule.
        at = active.clock + torch.where(alive, at_step - active.block_step, 0)
        for hook in self.hooks:
            hook(active, DrawnTokens(alive, masked, token, confidence, entropy, at, edit))

        active.tokens = torch.where(reveal if edit is None else reveal | edit, token, active.tokens)
        active.confidence = torch.where(reveal, confidence.float(), active.confidence)
        active.entropy = torch.where(reveal, entropy.float(), active.entropy)
        active.reveal_step = torch.where(reveal, at[:, None], active.reveal_step)
        active.nfe += alive * (2 if sampler.cfg_scale else 1)
        active.clock = at + alive
        active.block_step = torch.where(alive, at_step, active.block_step) + (alive & ~leading)

        # 5. A block without masks is complete, and the row goes on to its next one.
        complete = alive & ((unrevealed & ~reveal).sum(-1) == 0)
        if unfinished is not None:
            complete &= ~unfinished
        # With the confidence stop the next block starts at once, and in the published samplers of models that attend
        # block by block; otherwise the schedule's remaining steps are spent first.
        if scheduled and not sampler.stops_at_confidence and not self.model.block_length:
            remaining = len(self.counts) - active.block_step
        else:
            remaining = torch.zeros_like(active.block_step)
        self._next_block(active, complete, remaining)

    def _draw(
        self, active: ActiveRows, hidden: list[torch.Tensor], where: torch.Tensor, count: int
    ) -> list[torch.Tensor]:
        """The fields of Drawn at the positions `where` [A, C], each [A, C], zero where nothing was drawn. count: these
        positions, or an upper bound."""
        if where.is_cuda:  # asking the device where they are would wait for it: these positions first, then others
            place_T = where.flatten().int().argsort(descending=True, stable=True)[: max(1, count)]
            row_T, column_T = place_T // where.shape[1], place_T % where.shape[1]
        else:
            row_T, column_T = where.nonzero().unbind(-1)
        within_T = (column_T + active.offset[row_T]) % hidden[0].shape[1]
        hidden_TD = [h[row_T, within_T] for h in hidden]
        noise_T = uniform(active.seed[row_T], TOKENS, active.nfe[row_T], column_T)
        drawn = draw(
            self.model, hidden_TD, self.sampler, noise_T, self.rule.score, without_mask=self.forward.structure.causal
        )
        fields = []
        for value in drawn:
            fields.append(value.new_zeros(where.shape))
            fields[-1][row_T, column_T] = value
        return fields

    def _next_block(self, active: ActiveRows, complete: torch.Tensor, remaining: torch.Tensor) -> None:
        """Move rows whose block is complete to the next block, and mark finished rows.

        complete: [A] bool. remaining: scheduled steps left in a complete block, [A] int64.
        """
        is_eos = active.tokens == self.model.eos_id
        stopped = torch.zeros_like(complete)
        if self.sampler.stops_at_eos:  # an EOS with no mask before it: all up to it is revealed
            masks_before = (active.tokens == self.model.mask_id).int().cumsum(-1)
            stopped = (is_eos & (masks_before == 0)).any(-1)
        if self.model.block_length:  # as published: no block follows one with an EOS, on which nothing before depends
            stopped |= complete & is_eos.any(-1)
        active.clock += torch.where(complete & ~stopped, remaining, 0)
        active.block += complete
        active.block_step = torch.where(complete, 0, active.block_step)
        active.done |= stopped | (active.block >= active.blocks)
        active.storing = complete & ~active.done & self.forward.runs_between_blocks


def draw(
    model: MaskedDiffusionLM,
    hidden_TD: list[torch.Tensor],
    sampler: Sampler,
    uniform_T: torch.Tensor,
    score: Score | None = None,
    *,
    without_mask: bool = False,
) -> Drawn:
    """Draw a token at each of T positions; the mask token is never drawn.

    hidden_TD: hidden states [T, D]; with guidance, a second tensor of those without the prompt.
    uniform_T: float64 in [0, 1), the only randomness. T may be 0. score: of the reveal rule (Rule.score).
    without_mask: whether the rule_confidence leaves out the mask token's share.
    The logits [T, V] are computed and drawn from in pieces (LOGIT_ELEMENTS, CHUNK_ELEMENTS). Probabilities are float64
    where products with the head are exact, else float32.
    """
    kind, parts = uniform_T.device.type, []
    head_rows = max(1, LOGIT_ELEMENTS.get(kind, LOGIT_ELEMENTS["cpu"]) // model.vocab_size)
    draw_rows = max(1, CHUNK_ELEMENTS.get(kind, CHUNK_ELEMENTS["cpu"]) // model.vocab_size)
    for start in range(0, max(1, len(uniform_T)), head_rows):
        piece = slice(start, start + head_rows)
        logits = model.head(hidden_TD[0][piece])
        dtype = torch.float64 if model.products == "float32" else torch.float32
        if sampler.cfg_scale:
            logits = guided(logits, model.head(hidden_TD[1][piece]).to(dtype), sampler.cfg_scale)
        for some, noise in zip(logits.split(draw_rows), uniform_T[piece].split(draw_rows), strict=True):
            parts.append(draw_from_logits(some, sampler, model.mask_id, noise, score, dtype, without_mask))
    return Drawn(*map(torch.cat, zip(*parts, strict=True)))
