"""The denoising loop: prompts in, trajectories out.

Each row has its own clock. The model does not see the time, so a step that reveals nothing needs no forward: a row
jumps to its next step that reveals something. Logits are computed only for each row's active block. Finished rows
leave, and waiting prompts take their places. Noise is a pure function of a row's seed, so a row's result does not
depend on the other rows of its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_

import torch

from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.draw import draw
from lfpo.core.forward import (
    ActiveRows,
    Drawing,
    Forward,
    Hook,
    finished_trajectory,
    join,
    rows_in_flight,
    sampling_structure,
    sizes_of_blocks,
    unstarted,
)
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.noise import uniform
from lfpo.core.reveal import TOKENS, Pace, Proposal, Revealed, Rule
from lfpo.core.schedule import reveal_schedule
from lfpo.core.trajectory import Trajectory

# Steps between two looks for finished rows, by device: on a GPU, looking waits for all queued work.
LOOK_EVERY = {"cpu": 1, "cuda": 4}

Finished = Callable[[list[int], Trajectory], None]
Forwarded = Callable[[int], None]


@torch.no_grad()
def denoise(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: SamplerConfig,
    seeds: Sequence[int],
    rule: Rule,
    *,
    rollout_tokens: int = 16384,
    compiled: bool = False,
    finished: Finished | None = None,
    forwarded: Forwarded | None = None,
    make_forward: Callable[..., Forward] = Forward,
    hooks: Sequence[Hook] = (),
    whole_completion: bool = False,
    stores: bool = False,
) -> Trajectory:
    """Denoise one completion for each of B prompts that fit the model; lfpo.rollout.sampling.rollout says what most
    arguments are.

    sampler: with its lengths filled in. rule: the reveal rule that it selects.
    make_forward: makes what runs the model for the rows in flight; called as Forward is.
    hooks: called after each forward, before the rows change.
    whole_completion: draw at all masked positions, not at those of the active block alone.
    stores: a forward that stores the finished block comes between two blocks.
    """
    causal = sampling_structure(sampler, model).causal
    leads = causal and sampler.first_token != "masked"
    between = stores or leads  # whether a forward comes between two blocks
    every, sizes = unstarted(prompts, seeds, sampler, model), sizes_of_blocks(prompts, sampler, model)
    every.storing |= between and causal  # the first forward runs the prompt
    counts = reveal_schedule(sampler, rule) if rule.schedule else torch.zeros(0, dtype=torch.long)
    denoiser = Denoiser(
        model,
        sampler,
        rule,
        counts.to(model.device),
        hooks,
        whole_completion,
        between=between,
        causal=causal,
        leads=leads,
    )
    stops = sampler.stops_at_eos or bool(model.block_length)
    pace = Pace(sampler, rule, counts.tolist(), seeds, sizes, stops=stops, stores=stores, planned=not causal)
    forward = make_forward(
        model,
        sampler,
        prompts,
        pace=pace,
        whole_completion=whole_completion,
        compiled=compiled,
        rollout_tokens=rollout_tokens,
    )
    # Longest first: memory is highest at the start, and rows of similar length run together.
    lengths = list(map(len, prompts))
    waiting = sorted(range(len(prompts)), key=lengths.__getitem__, reverse=True)  # ties stay in order
    row_ids: list[int] = []  # active.row, known without asking the device
    active, done = every.select([]), []
    columns = every.tokens.shape[1]
    # Each forward of a row reveals at least one token, or stores a block, or may edit a block without masks.
    most_forwards = columns + (between + (sampler.max_post_steps if sampler.edits else 0)) * max(map(len, sizes))
    look_every = LOOK_EVERY.get(model.device.type, 1)
    asks = look_every == 1 or not pace.exact  # must the device be asked which rows are finished?
    step = last_finish = 0
    was_training = model.training
    model.eval()
    while waiting or row_ids:
        longest = len(prompts[(row_ids or waiting)[0]]) + columns
        room = rows_in_flight(longest, sampler, rollout_tokens, stores) - len(row_ids)
        if waiting and room > 0:
            row_ids, waiting, entering = row_ids + waiting[:room], waiting[room:], waiting[:room]
            active = join([active, every.select(entering)])
        hidden = forward.hidden(active, row_ids)
        denoiser.step(active, hidden, pace.advance(row_ids))
        step += 1
        if forwarded is not None:
            forwarded(len(row_ids))
        ended: list[bool] = []
        if not asks:
            ended = pace.ended(row_ids)
        elif step % look_every == 0:
            ended = active.done.tolist()
        if any(ended):
            stay = list(compress(range(len(ended)), map(not_, ended)))
            done.append(active.select(list(compress(range(len(ended)), ended))))
            if finished is not None:
                finished(sorted(done[-1].row.tolist()), denoiser.trajectory(done[-1]))
            active, row_ids = active.select(stay), list(compress(row_ids, map(not_, ended)))
            forward.keep(stay)
            last_finish = step
        if step - last_finish >= most_forwards + look_every:
            raise UserError(
                f"reveal rule {sampler.rule_name!r}: no row was finished in {step - last_finish} forwards; the rule "
                "must reveal at least one eligible position of every row that has any"
            )
    model.train(was_training)
    return denoiser.trajectory(join(done))


@dataclass(frozen=True)
class Denoiser:
    """What one forward does to the rows in flight.

    sampler: with its lengths filled in. counts: its reveal_schedule, on the model's device.
    whole_completion: tokens are drawn at all masked positions, not at those of the active block alone.
    between: a forward that stores the finished block comes between two blocks. causal: over a causal context, where the
        first such forward runs the prompt. leads: such a forward also reveals the first token of the next block.
    """

    model: MaskedDiffusionLM
    sampler: SamplerConfig
    rule: Rule
    counts: torch.Tensor
    hooks: Sequence[Hook]
    whole_completion: bool
    between: bool
    causal: bool
    leads: bool

    def step(self, active: ActiveRows, hidden: list[torch.Tensor], count: int) -> None:
        """Draw tokens, reveal and edit those that the rule picks, and move each row's clocks on. Finished rows do not
        change, and rows whose forward stored a block only become ready for the next one.

        hidden: hidden states [A, block_length, D] of each row's active block (two such tensors with guidance), or with
            `whole_completion` of all positions. Of rows that are storing the first state alone has a meaning.
        count: the masked positions of the active blocks, or an upper bound.
        """
        sampler = self.sampler
        assert sampler.block_length
        leading = active.storing & self.leads
        alive = ~active.done & (leading | ~active.storing)
        place = torch.arange(active.tokens.shape[1], device=alive.device) + active.offset[:, None]  # in row's blocks
        in_block = (place // sampler.block_length == active.block[:, None]) & alive[:, None]
        masked = (active.tokens == self.model.mask_id) & alive[:, None]
        unrevealed = in_block & masked
        eligible = unrevealed & (~leading[:, None] | (place % sampler.block_length == 0))
        drawn, revealed = eligible, None
        if self.whole_completion:
            drawn, count = masked, masked.numel()
        if sampler.edits:
            # A forward counts one step, so steps since the block's last mask was replaced count forwards without masks.
            since = active.clock - active.reveal_step.masked_fill(~in_block, -1).amax(-1)
            revealed = Revealed(in_block & ~masked, active.tokens, torch.where(eligible.any(-1), 0, since))
            drawn = in_block
        token, confidence, entropy, sureness, score = self._draw(active, hidden, drawn, count)
        step = Proposal(
            eligible=eligible,
            token=token,
            confidence=sureness,
            entropy=entropy,
            score=score,
            block_step=active.block_step,
            counts=self.counts,
            seed=active.seed,
            nfe=active.nfe,
            sampler=sampler,
            revealed=revealed,
        )
        positions, at_step, edit, goes_on = self.rule.reveal(step)
        reveal, scheduled = positions & eligible, at_step is not None
        at_step = active.block_step if at_step is None else torch.where(leading, active.block_step, at_step)
        if sampler.stops_at_confidence:
            # A new state is met first at the current step. If all of it is confident, the block is committed there.
            confident = ((sureness >= sampler.early_stop_threshold) | ~eligible).all(-1)
            reveal = torch.where(confident[:, None], eligible, reveal)
            at_step = torch.where(confident, active.block_step, at_step)
        edit = None if edit is None or revealed is None else edit & revealed.editable
        at = active.clock + torch.where(alive, at_step - active.block_step, 0)  # over steps that reveal nothing
        for hook in self.hooks:
            hook(active, Drawing(alive, masked, token, confidence, entropy, at, edit))

        active.tokens = torch.where(reveal if edit is None else reveal | edit, token, active.tokens)
        active.confidence = torch.where(reveal, confidence.float(), active.confidence)
        active.entropy = torch.where(reveal, entropy.float(), active.entropy)
        active.reveal_step = torch.where(reveal, at[:, None], active.reveal_step)
        active.nfe += alive * (2 if sampler.cfg_scale else 1)
        active.clock = at + alive
        active.block_step = torch.where(alive, at_step, active.block_step) + (alive & ~leading)

        complete = alive & ((unrevealed & ~reveal).sum(-1) == 0)
        if goes_on is not None:
            complete &= ~goes_on
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
        drawn = draw(self.model, hidden_TD, self.sampler, noise_T, self.rule.score, without_mask=self.causal)
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
        active.storing = complete & ~active.done & self.between

    def trajectory(self, ended: ActiveRows) -> Trajectory:
        """Finished rows, with what the hooks found, in the caller's order."""
        trajectory, row_B = finished_trajectory(ended, self.sampler, self.model), ended.row.sort().values
        for hook in self.hooks:
            trajectory = hook.added_to(trajectory, row_B)
        return trajectory
