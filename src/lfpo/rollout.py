"""The denoising loop: prompts in, trajectories out. Exact: no approximation is made anywhere here.

Each row has its own clock. A model does not see the time, so steps that reveal nothing need no forward: a row jumps to
its next step that does. Logits are computed only at the masked positions of each row's active block, and finished rows
leave the batch. Noise comes from one generator per row, so a row's result does not depend on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .batching import left_pad, pack_by_tokens
from .decoding import SamplerConfig, above_threshold, kept_tokens, reveal_counts, top_k_per_row
from .errors import UserError
from .models import MaskedDiffusionLM
from .trajectory import Trajectory

DRAW_ELEMENTS = 2**24  # logits drawn from at once, 128 MiB in float64

Observer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def rollout(
    model: MaskedDiffusionLM,
    prompts: Sequence[Sequence[int]],
    sampler: SamplerConfig,
    seeds: Sequence[int],
    *,
    rollout_tokens: int = 16384,
    observer: Observer | None = None,
) -> Trajectory:
    """Denoise one completion for each prompt (token ids), seeds[i] deciding row i's noise.

    rollout_tokens: rows x length run at once; bounds memory and never changes a result beyond rounding.
    observer: called before each forward with (row indices [b], their states [b, C], their clocks [b]).
    Raises UserError for an empty prompt, one holding the mask token, or one longer than the context allows.
    """
    sampler = sampler.for_length(128)
    assert sampler.gen_length is not None
    check_prompts(prompts, model, sampler.gen_length)
    groups = pack_by_tokens([len(p) + sampler.gen_length for p in prompts], rollout_tokens)
    width = max(len(p) for p in prompts)
    parts = [_denoise(model, [prompts[i] for i in g], sampler, [seeds[i] for i in g], g, observer) for g in groups]
    order = torch.tensor([i for group in groups for i in group]).argsort()
    return _join(parts, width, model.pad_id).rows(order)


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


@dataclass
class _State:
    """The rows being denoised. clock, block and block_step are per row; done rows no longer run."""

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    tokens: torch.Tensor  # [B, C], the mask token where nothing is revealed yet
    reveal_step: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor
    clock: torch.Tensor  # scheduled steps spent
    block: torch.Tensor  # active block
    block_step: torch.Tensor  # steps of the active block spent
    nfe: torch.Tensor
    done: torch.Tensor


@torch.no_grad()
def _denoise(
    model: MaskedDiffusionLM,
    prompts: list[Sequence[int]],
    sampler: SamplerConfig,
    seeds: list[int],
    numbers: list[int],
    observer: Observer | None,
) -> Trajectory:
    device, size = model.device, len(prompts)
    assert sampler.gen_length and sampler.block_length
    generators = [torch.Generator(device=device).manual_seed(s) for s in seeds]
    ids, mask = (x.to(device) for x in left_pad(prompts, model.pad_id))
    shape = (size, sampler.gen_length)
    zeros = torch.zeros(size, dtype=torch.long, device=device)
    state = _State(
        prompt_ids=ids,
        prompt_mask=mask,
        tokens=torch.full(shape, model.mask_id, device=device),
        reveal_step=torch.full(shape, -1, device=device),
        confidence=torch.zeros(shape, dtype=torch.float32, device=device),
        entropy=torch.zeros(shape, dtype=torch.float32, device=device),
        clock=zeros.clone(),
        block=zeros.clone(),
        block_step=zeros.clone(),
        nfe=zeros.clone(),
        done=torch.zeros(size, dtype=torch.bool, device=device),
    )
    counts = None
    if sampler.steps is not None:
        steps_per_block = sampler.steps * sampler.block_length // sampler.gen_length
        counts = reveal_counts(sampler.block_length, steps_per_block, sampler.schedule).to(device)
    was_training = model.training
    model.eval()
    while not bool(state.done.all()):
        active = (~state.done).nonzero().squeeze(-1)
        if observer is not None:
            rows = torch.tensor([numbers[i] for i in active.tolist()])
            observer(rows, state.tokens[active].clone(), state.clock[active].clone())
        _step(model, state, active, sampler, counts, generators)
    model.train(was_training)
    never = state.reveal_step < 0
    return Trajectory(
        prompt_ids=state.prompt_ids,
        prompt_mask=state.prompt_mask,
        tokens=state.tokens.masked_fill(never, model.pad_id),
        reveal_step=state.reveal_step,
        confidence=state.confidence,
        entropy=state.entropy,
        scheduled_steps=state.clock,
        nfe=state.nfe,
        sampler=sampler,
        mask_id=model.mask_id,
        eos_id=model.eos_id,
    )


def _step(
    model: MaskedDiffusionLM,
    state: _State,
    active: torch.Tensor,
    sampler: SamplerConfig,
    counts: torch.Tensor | None,
    generators: list[torch.Generator],
) -> None:
    """One forward for every active row, then the reveal it leads to, at that row's own scheduled step."""
    assert sampler.gen_length and sampler.block_length
    tokens_AC = state.tokens[active]
    block_of_C = torch.arange(sampler.gen_length, device=active.device) // sampler.block_length
    eligible_AC = (tokens_AC == model.mask_id) & (block_of_C == state.block[active, None])
    logits_TV = _logits(model, state, active, tokens_AC, eligible_AC, sampler.cfg_scale)
    state.nfe[active] += 2 if sampler.cfg_scale else 1

    rows = active.tolist()
    sizes = eligible_AC.sum(-1).tolist()
    drawn_T, confidence_T = _draw(logits_TV, sampler, model.mask_id, [generators[r] for r in rows], sizes)
    drawn_AC = tokens_AC.masked_scatter(eligible_AC, drawn_T)
    confidence_AC = torch.zeros(tokens_AC.shape, dtype=torch.float64, device=active.device)
    confidence_AC = confidence_AC.masked_scatter(eligible_AC, confidence_T)
    score_AC = confidence_AC
    if sampler.remasking == "random":
        noise = [
            torch.rand(n, generator=generators[r], dtype=torch.float64, device=active.device)
            for r, n in zip(rows, sizes, strict=True)
        ]
        score_AC = torch.zeros_like(confidence_AC).masked_scatter(eligible_AC, torch.cat(noise))

    if counts is None:
        assert sampler.threshold is not None
        reveal = above_threshold(confidence_AC, eligible_AC, sampler.threshold)
    else:
        # The next step of the block that reveals something; the idle ones before it pass without a forward.
        block_step = state.block_step[active]
        pending = (counts > 0) & (torch.arange(len(counts), device=active.device) >= block_step[:, None])
        at_step = pending.int().argmax(-1)
        reveal = top_k_per_row(score_AC, eligible_AC, counts[at_step])
        if sampler.judges_confidence:
            # A new state is judged at the first step that meets it; then the whole block is committed there.
            sure = ((confidence_AC >= sampler.early_stop_threshold) | ~eligible_AC).all(-1)
            reveal = torch.where(sure[:, None], eligible_AC, reveal)
            at_step = torch.where(sure, block_step, at_step)
        state.clock[active] += at_step - block_step
        state.block_step[active] = at_step

    clock = state.clock[active]
    state.tokens[active] = torch.where(reveal, drawn_AC, tokens_AC)
    state.confidence[active] = torch.where(reveal, confidence_AC.float(), state.confidence[active])
    revealed_T = reveal[eligible_AC]
    entropy_AC = torch.zeros_like(state.entropy[active]).masked_scatter(reveal, _entropy(logits_TV[revealed_T]))
    state.entropy[active] = torch.where(reveal, entropy_AC, state.entropy[active])
    state.reveal_step[active] = torch.where(reveal, clock[:, None], state.reveal_step[active])
    state.clock[active] += 1
    state.block_step[active] += 1
    _advance(model, state, active, (eligible_AC & ~reveal).sum(-1) == 0, sampler, counts)


def _advance(
    model: MaskedDiffusionLM,
    state: _State,
    active: torch.Tensor,
    complete: torch.Tensor,
    sampler: SamplerConfig,
    counts: torch.Tensor | None,
) -> None:
    """Move rows whose block is complete to the next block, and mark finished rows."""
    assert sampler.gen_length and sampler.block_length
    stopped = torch.zeros_like(complete)
    if sampler.stops_at_eos:
        # Every position before the first EOS is revealed exactly when no mask stands before it.
        ends = (state.tokens[active] == model.eos_id).int().cumsum(-1) > 0
        masks = (state.tokens[active] == model.mask_id).int().cumsum(-1) > 0
        stopped = (ends & ~masks).any(-1)
    if counts is not None and not sampler.judges_confidence:
        # The schedule's remaining steps reveal nothing, but they are spent. (Under confidence stopping a complete
        # block has nothing left to wait for, so the next one starts at once.)
        idle = len(counts) - state.block_step[active]
        state.clock[active] += torch.where(complete & ~stopped, idle, 0)
    state.block[active] += complete.long()
    state.block_step[active] = torch.where(complete, 0, state.block_step[active])
    state.done[active] = stopped | (state.block[active] * sampler.block_length >= sampler.gen_length)


def _logits(
    model: MaskedDiffusionLM,
    state: _State,
    active: torch.Tensor,
    tokens_AC: torch.Tensor,
    eligible_AC: torch.Tensor,
    cfg_scale: float,
) -> torch.Tensor:
    """Logits [T, V] at the eligible positions, row-major, guided when cfg_scale > 0."""
    prompt_ids, prompt_mask = state.prompt_ids[active], state.prompt_mask[active]
    attention = torch.cat([prompt_mask, torch.ones_like(tokens_AC)], dim=1)
    positions = torch.nn.functional.pad(eligible_AC, (prompt_ids.shape[1], 0))
    logits = model(torch.cat([prompt_ids, tokens_AC], dim=1), attention, positions)
    if cfg_scale:
        blank = torch.full_like(prompt_ids, model.mask_id)
        unguided = model(torch.cat([blank, tokens_AC], dim=1), attention, positions)
        logits = unguided + (cfg_scale + 1) * (logits - unguided)
    return logits


def _draw(
    logits_TV: torch.Tensor,
    sampler: SamplerConfig,
    mask_id: int,
    generators: list[torch.Generator],
    sizes: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each position and its probability at temperature 1 (float64), both [T].

    The mask token is never drawn. sizes[i] positions belong to generators[i]. Rows go in chunks: a float64 copy of all
    logits of a large vocabulary would be the largest tensor of the whole rollout.
    """
    vocabulary = logits_TV.shape[1]
    drawn, confidence, start = [], [], 0
    while start < len(sizes):
        stop = start + 1
        while stop < len(sizes) and sum(sizes[start : stop + 1]) * vocabulary <= DRAW_ELEMENTS:
            stop += 1
        first, count = sum(sizes[:start]), sum(sizes[start:stop])
        logits = logits_TV[first : first + count].double()
        scores = logits.clone()
        scores[:, mask_id] = -torch.inf
        if sampler.temperature > 0:
            scores = scores / sampler.temperature
            if sampler.top_k is not None or sampler.top_p is not None:
                scores = scores.masked_fill(~kept_tokens(scores, sampler.top_k, sampler.top_p), -torch.inf)
            uniform = [
                torch.rand((n, vocabulary), generator=g, dtype=torch.float64, device=logits.device)
                for g, n in zip(generators[start:stop], sizes[start:stop], strict=True)
            ]
            # argmax(z / T + Gumbel) is a draw from softmax(z / T); clamped because rand may return exactly 0.
            scores = scores - torch.log(-torch.log(torch.cat(uniform).clamp(min=1e-300)))
        tokens = scores.argmax(-1)
        drawn.append(tokens)
        confidence.append((logits.gather(1, tokens[:, None]).squeeze(1) - logits.logsumexp(-1)).exp())
        start = stop
    return torch.cat(drawn), torch.cat(confidence)


def _entropy(logits_TV: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the prediction at temperature 1, [T]."""
    logp = logits_TV.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def _join(parts: list[Trajectory], width: int, pad_id: int) -> Trajectory:
    """Concatenate trajectories of groups, widening prompts on the left to a common width."""

    def widen(x: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(x, (width - x.shape[1], 0), value=value)

    first = parts[0]
    joined = {
        name: torch.cat([getattr(p, name) for p in parts])
        for name in ("tokens", "reveal_step", "confidence", "entropy", "scheduled_steps", "nfe")
    }
    return Trajectory(
        prompt_ids=torch.cat([widen(p.prompt_ids, pad_id) for p in parts]),
        prompt_mask=torch.cat([widen(p.prompt_mask, 0) for p in parts]),
        sampler=first.sampler,
        mask_id=first.mask_id,
        eos_id=first.eos_id,
        **joined,
    )
