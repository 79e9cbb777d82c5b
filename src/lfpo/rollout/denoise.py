"""The denoising loop: prompts in, trajectories out. Exact, unless the sampler's settings ask for a cache.

Each row has its own clock. A model does not see the time, so steps that reveal nothing need no forward: a row jumps to
its next step that does. Logits are computed only for each row's active block. Finished rows leave and waiting prompts
take their places. Noise is a pure function of a row's seed, so a row's result does not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lfpo.base.errors import UserError
from lfpo.base.rng import uniform
from lfpo.models import MaskedDiffusionLM
from lfpo.rollout.draw import Drawn, draw
from lfpo.rollout.forward import Reader
from lfpo.rollout.lanes import Lanes, finished_trajectory, join, new_lanes
from lfpo.rollout.reveal import (
    above_threshold,
    origin_steps,
    reveal_counts,
    top_k_per_row,
    within_entropy,
    within_factor,
)
from lfpo.rollout.sampler import SamplerConfig
from lfpo.rollout.trajectory import Trajectory

# Purposes of a row's random numbers.
TOKENS, ORDER, PLAN = range(3)
# How often finished rows are looked for: on a GPU, looking means waiting for it.
LOOK_EVERY = {"cpu": 1, "cuda": 4}

Observer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
Finished = Callable[[list[int], Trajectory], None]


@torch.no_grad()
def rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: SamplerConfig,
    seeds: Sequence[int],
    *,
    rollout_tokens: int = 16384,
    observer: Observer | None = None,
    finished: Finished | None = None,
    share_first: bool = True,
    compiled: bool = False,
) -> Trajectory:
    """Denoise one completion for each prompt (token ids), seeds[i] deciding row i's noise.

    rollout_tokens: rows x length run at once; bounds memory and never changes a result beyond rounding.
    observer: called before each forward with (row indices [b], their states [b, C], their clocks [b]).
    finished: called with rows as soon as they are complete: their indices, ascending, and their trajectory.
    compiled: run forwards through torch.compile, padded to few shapes; worth it on a GPU and in long runs.
    share_first: rows with the same prompt share their first forward; False is for measuring what that saves.
    Raises UserError for an empty prompt, one holding the mask token, or one longer than the context allows.
    """
    sampler = sampler.for_length(128)
    assert sampler.gen_length is not None
    check_prompts(prompts, model, sampler.gen_length)
    # Longest first: memory is highest at the start, and rows of like length run together.
    waiting = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    every = new_lanes(prompts, seeds, sampler, model)
    if sampler.alg == "origin":
        noise = uniform(every.seed[:, None], PLAN, torch.arange(sampler.gen_length, device=model.device))
        every.plan = origin_steps(noise, _steps_per_block(sampler), sampler.eps)
    counts = reveal_schedule(sampler).to(model.device)
    reader = Reader(model, sampler, prompts, share_first, compiled)
    rows: list[int] = []
    lanes, done, step = every.select([]), [], 0
    was_training = model.training
    model.eval()
    while waiting or rows:
        room = max(1, rollout_tokens // (len(prompts[(rows or waiting)[0]]) + sampler.gen_length)) - len(rows)
        if waiting and room > 0:
            rows, waiting, entering = rows + waiting[:room], waiting[room:], waiting[:room]
            lanes = join([lanes, every.select(entering)])
        if observer is not None:
            live = ~lanes.done
            observer(lanes.row[live].cpu(), lanes.tokens[live].clone(), lanes.clock[live].clone())
        _step(model, lanes, reader.hidden(lanes, rows), sampler, counts)
        step += 1
        if step % LOOK_EVERY.get(model.device.type, 1) == 0 and any(ended := lanes.done.tolist()):
            stay = [i for i, over in enumerate(ended) if not over]
            done.append(lanes.select([i for i, over in enumerate(ended) if over]))
            if finished is not None:
                finished(sorted(done[-1].row.tolist()), finished_trajectory(done[-1], sampler, model))
            lanes, rows = lanes.select(stay), [rows[i] for i in stay]
            reader.keep(stay)
    model.train(was_training)
    return finished_trajectory(join(done), sampler, model)


def check_prompts(prompts: Sequence[Sequence[int]], model: MaskedDiffusionLM, gen_length: int) -> None:
    if not prompts:
        raise UserError("no prompts to sample from; give at least one")
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {number} has no tokens")
        if model.mask_id in prompt:
            raise UserError(f"prompt {number} contains the mask token (id {model.mask_id}), which stands for a blank")
        if len(prompt) + gen_length > model.max_length:
            raise UserError(
                f"prompt {number} has {len(prompt)} tokens; with gen_length {gen_length} that exceeds the model's "
                f"context of {model.max_length}; shorten the prompt or gen_length"
            )


def _steps_per_block(sampler: SamplerConfig) -> int:
    assert sampler.steps and sampler.gen_length and sampler.block_length
    return sampler.steps * sampler.block_length // sampler.gen_length


def reveal_schedule(sampler: SamplerConfig) -> torch.Tensor:
    """Tokens that each step of a block reveals; empty where confidences decide."""
    if sampler.paces_itself:
        return torch.zeros(0, dtype=torch.long)
    assert sampler.block_length
    schedule = sampler.schedule or ("dream" if sampler.alg else "llada")
    return reveal_counts(sampler.block_length, _steps_per_block(sampler), schedule, sampler.eps)


def _step(
    model: MaskedDiffusionLM,
    lanes: Lanes,
    hidden: list[torch.Tensor],
    sampler: SamplerConfig,
    counts: torch.Tensor,
) -> None:
    """What follows a forward: each row reveals tokens at its own scheduled step. Rows that are done stay as they are.

    hidden: states [A, block_length, D] of each row's active block (two of them with guidance).
    """
    assert sampler.gen_length and sampler.block_length
    alive, size = ~lanes.done, sampler.block_length
    column = torch.arange(sampler.gen_length, device=alive.device)
    in_block = (column // size == lanes.block[:, None]) & alive[:, None]
    eligible = in_block & (lanes.tokens == model.mask_id)
    if alive.is_cuda:  # all positions of the block, masked or not: a number known without asking the device
        start = lanes.block.clamp(max=sampler.gen_length // size - 1) * size
        row_T = torch.arange(len(alive), device=alive.device).repeat_interleave(size)
        column_T = (start[:, None] + column[:size]).flatten()
    else:
        row_T, column_T = eligible.nonzero().unbind(-1)
    noise_T = uniform(lanes.seed[row_T], TOKENS, lanes.nfe[row_T], column_T)
    drawn = draw(model, [h[row_T, column_T % size] for h in hidden], sampler, noise_T)
    token, confidence, entropy, score = _spread(drawn, lanes, row_T, column_T)
    if sampler.remasking == "random" or sampler.alg_temp:
        noise = uniform(lanes.seed[:, None], ORDER, lanes.nfe[:, None], column)
        # Scores over alg_temp plus Gumbel noise: the best k are k draws without replacement.
        gumbel = -(-noise.clamp(min=1e-300).log()).log()
        score = score / sampler.alg_temp + gumbel if sampler.alg_temp else noise

    if sampler.threshold is not None:
        reveal = above_threshold(confidence, eligible, sampler.threshold)
    elif sampler.factor is not None:
        reveal = within_factor(confidence, eligible, sampler.factor)
    elif sampler.entropy_bound is not None:
        reveal = within_entropy(entropy, eligible, sampler.entropy_bound)
    else:
        reveal, at_step = _scheduled(lanes, eligible, score, counts)
        if sampler.judges_confidence:
            # A new state is judged at the first step that meets it; then the whole block is committed there.
            sure = ((confidence >= sampler.early_stop_threshold) | ~eligible).all(-1)
            reveal = torch.where(sure[:, None], eligible, reveal)
            at_step = torch.where(sure, lanes.block_step, at_step)
        lanes.clock += torch.where(alive, at_step - lanes.block_step, 0)
        lanes.block_step = torch.where(alive, at_step, lanes.block_step)

    lanes.tokens = torch.where(reveal, token, lanes.tokens)
    lanes.confidence = torch.where(reveal, confidence.float(), lanes.confidence)
    lanes.entropy = torch.where(reveal, entropy.float(), lanes.entropy)
    lanes.reveal_step = torch.where(reveal, lanes.clock[:, None], lanes.reveal_step)
    lanes.nfe += alive * (2 if sampler.cfg_scale else 1)
    lanes.clock += alive
    lanes.block_step += alive
    _advance(model, lanes, alive & ((eligible & ~reveal).sum(-1) == 0), sampler, counts)


def _spread(drawn: Drawn, lanes: Lanes, row_T: torch.Tensor, column_T: torch.Tensor) -> list[torch.Tensor]:
    """The fields of `drawn` as [A, C], zero where nothing was drawn."""
    found = []
    for value in (drawn.token, drawn.confidence, drawn.entropy, drawn.score):
        whole = torch.zeros(lanes.tokens.shape, dtype=value.dtype, device=value.device)
        whole[row_T, column_T] = value
        found.append(whole)
    return found


def _scheduled(
    lanes: Lanes, eligible: torch.Tensor, score: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each row's next step that reveals something reveals, and which step of the block that is; the idle ones
    before it pass without a forward."""
    if lanes.plan is not None:
        due = torch.where(eligible, lanes.plan, len(counts))
        at_step = due.amin(-1)
        return eligible & (due == at_step[:, None]), at_step
    pending = (counts > 0) & (torch.arange(len(counts), device=counts.device) >= lanes.block_step[:, None])
    at_step = pending.int().argmax(-1)
    return top_k_per_row(score, eligible, counts[at_step]), at_step


def _advance(
    model: MaskedDiffusionLM, lanes: Lanes, complete: torch.Tensor, sampler: SamplerConfig, counts: torch.Tensor
) -> None:
    """Move rows whose block is complete to the next block, and mark finished rows."""
    assert sampler.gen_length and sampler.block_length
    stopped = torch.zeros_like(complete)
    if sampler.stops_at_eos:
        # Every position before the first EOS is revealed exactly when no mask stands before it.
        ends = (lanes.tokens == model.eos_id).int().cumsum(-1) > 0
        masks = (lanes.tokens == model.mask_id).int().cumsum(-1) > 0
        stopped = (ends & ~masks).any(-1)
    if not sampler.paces_itself and not sampler.judges_confidence:
        # The schedule's remaining steps reveal nothing, but they are spent. (Under confidence stopping a complete
        # block has nothing left to wait for, so the next one starts at once.)
        lanes.clock += torch.where(complete & ~stopped, len(counts) - lanes.block_step, 0)
    lanes.block += complete
    lanes.block_step = torch.where(complete, 0, lanes.block_step)
    lanes.age = torch.where(complete, -1, lanes.age)
    lanes.done |= stopped | (lanes.block * sampler.block_length >= sampler.gen_length)
