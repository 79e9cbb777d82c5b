"""The denoising loop: prompts in, trajectories out.

Each row has its own clock. The model does not see the time, so a step that reveals nothing needs no forward: a row
jumps to its next step that reveals something. Logits are computed only for each row's active block. Finished rows
leave, and waiting prompts take their places. Noise is a pure function of a row's seed, so a row's result does not
depend on the other rows of its batch.
"""

from collections.abc import Callable, Sequence
from itertools import compress
from operator import not_

import torch

from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.core.forward import Forward, finished_trajectory, join, rows_in_flight, sizes_of_blocks, unstarted
from lfpo.core.hooks import Hook
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.pace import Pace
from lfpo.core.reveal import Denoiser
from lfpo.core.rule import Rule
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
    additions = [hook.added_to for hook in hooks]
    device, structure = model.device, model.sampling_structure(sampler.block_length)
    leads = structure.causal and sampler.first_token != "masked"
    between = stores or leads  # whether a forward comes between two blocks
    counts = reveal_schedule(sampler, rule) if rule.schedule else torch.zeros(0, dtype=torch.long)
    denoiser = Denoiser(
        model,
        sampler,
        rule,
        counts.to(device),
        hooks,
        whole_completion,
        between=between,
        causal=structure.causal,
        leads=leads,
    )
    sizes, pace = sizes_of_blocks(prompts, sampler, model), None
    # Without a plan, over a causal context and with the confidence stop, what a forward reveals is not known before it.
    if rule.plan is not None and not structure.causal and not sampler.stops_at_confidence:
        exact = not (sampler.stops_at_eos or model.block_length)
        pace = Pace(rule.plan, sampler, counts.tolist(), seeds, sizes, exact=exact, stores=stores)
    forward = make_forward(
        model,
        sampler,
        prompts,
        pace=pace,
        whole_completion=whole_completion,
        compiled=compiled,
        rollout_tokens=rollout_tokens,
    )
    every = unstarted(prompts, seeds, sampler, model)
    every.storing |= between and structure.causal  # the first forward runs the prompt
    # Longest first: memory is highest at the start, and rows of similar length run together.
    lengths = list(map(len, prompts))
    waiting = sorted(range(len(prompts)), key=lengths.__getitem__, reverse=True)  # ties stay in order
    row_ids: list[int] = []  # active.row, known without asking the device
    active, done = every.select([]), []
    columns = every.tokens.shape[1]
    # Each forward of a row reveals at least one token, or stores a block, or may edit a block without masks.
    most_forwards = columns + (between + (sampler.max_post_steps if sampler.edits else 0)) * max(map(len, sizes))
    look_every = LOOK_EVERY.get(device.type, 1)
    asks = look_every == 1 or pace is None or not pace.exact  # must the device be asked which rows are finished?
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
        at_most = len(row_ids) * (sampler.block_length or 0)  # masked positions of the active blocks
        denoiser.step(active, hidden, at_most if pace is None else pace.advance(row_ids))
        step += 1
        if forwarded is not None:
            forwarded(len(row_ids))
        ended: list[bool] = []
        if pace is not None and not asks:
            ended = pace.ended(row_ids)
        elif step % look_every == 0:
            ended = active.done.tolist()
        if any(ended):
            stay = list(compress(range(len(ended)), map(not_, ended)))
            done.append(active.select(list(compress(range(len(ended)), ended))))
            if finished is not None:
                finished(sorted(done[-1].row.tolist()), finished_trajectory(done[-1], sampler, model, additions))
            active, row_ids = active.select(stay), list(compress(row_ids, map(not_, ended)))
            last_finish = step
        if step - last_finish >= most_forwards + look_every:
            raise UserError(
                f"reveal rule {sampler.rule_name!r}: no row was finished in {step - last_finish} forwards; the rule "
                "must reveal at least one eligible position of every row that has any"
            )
    model.train(was_training)
    return finished_trajectory(join(done), sampler, model, additions)
