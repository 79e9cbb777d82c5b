"""The denoising loop: prompts in, trajectories out.

Each row has its own clock. The model does not see the time, so a step that reveals nothing needs no forward: a row
jumps to its next step that reveals something. Logits are computed only for each row's active block. Finished rows
leave, and waiting prompts take their places. Noise is a pure function of a row's seed, so a row's result does not
depend on the other rows of its batch.
"""

from collections.abc import Callable, Sequence

import torch

from lfpo.config.errors import UserError
from lfpo.config.sampler import Sampler
from lfpo.core.active_rows import ActiveRows
from lfpo.core.forward import Forward, block_sizes, join, select, unstarted
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
    sampler: Sampler,
    seeds: Sequence[int],
    rule: Rule,
    *,
    rollout_tokens: int = 16384,
    compiled: bool = False,
    finished: Finished | None = None,
    forwarded: Forwarded | None = None,
    forward_type: type[Forward] = Forward,
    hooks: Sequence[Hook] = (),
    shown: Sequence[Sequence[int]] = (),
) -> Trajectory:
    """Denoise one completion for each of B prompts that fit the model; lfpo.rollout.sampling.rollout says what most
    arguments are.

    sampler: with its lengths filled in. rule: the reveal rule that it selects.
    forward_type: of what runs the model for the rows in flight.
    hooks: called after each forward, before the rows change.
    shown: see Request. Such tokens count as revealed at step 0, with confidence 1 and entropy 0.
    """
    device, pace = model.device, None
    sizes = [block_sizes(len(prompt), sampler, model) for prompt in prompts]
    counts = reveal_schedule(sampler, rule) if rule.schedule else torch.zeros(0, dtype=torch.long)
    if rule.plan is not None and not shown:  # a plan counts masks in whole blocks
        exact = not (sampler.stops_at_eos or model.block_length)
        pace = Pace(rule.plan, sampler, counts.tolist(), seeds, sizes, exact=exact, stores=forward_type.stores)
    forward = forward_type(model, sampler, prompts, pace=pace, compiled=compiled, rollout_tokens=rollout_tokens)
    denoiser = Denoiser(model, sampler, rule, counts.to(device), hooks, forward)
    every = unstarted(prompts, seeds, sampler, model)
    every.storing |= forward.between and forward.structure.causal  # the first forward runs the prompt
    if shown:
        given_BC = torch.tensor(shown, device=device)
        every.tokens = torch.where(given_BC >= 0, given_BC, every.tokens)
        every.reveal_step = torch.where(given_BC >= 0, 0, every.reveal_step)
        every.confidence = (given_BC >= 0).float()
        forward.started.update(range(len(prompts)))  # rows of a prompt differ, so none is run for the others
    # Longest first: memory is highest at the start, and rows of similar length run together.
    lengths = list(map(len, prompts))
    waiting = sorted(range(len(prompts)), key=lengths.__getitem__, reverse=True)  # ties stay in order
    row_ids: list[int] = []  # active.row, known without asking the device
    active, done = select(every, []), []
    columns = every.tokens.shape[1]
    # Each forward of a row reveals at least one token, or stores a block, or may edit a block without masks.
    idle = forward.between + (sampler.max_post_steps if sampler.edits else 0)
    most_forwards = columns + idle * max(map(len, sizes))
    look_every = LOOK_EVERY.get(device.type, 1)
    asks = look_every == 1 or pace is None or not pace.exact  # must the device be asked which rows are finished?
    step = last_finish = 0
    was_training = model.training
    model.eval()
    while waiting or row_ids:
        longest = len(prompts[(row_ids or waiting)[0]]) + columns
        room = forward.rows_at_once(longest) - len(row_ids)
        if waiting and room > 0:
            row_ids, waiting, entering = row_ids + waiting[:room], waiting[room:], waiting[:room]
            active = join([active, select(every, entering)])
        hidden = forward.hidden(active, row_ids)
        at_most = len(row_ids) * sampler.block_length  # masked positions of the active blocks
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
            stay = [place for place, end in enumerate(ended) if not end]
            done.append(select(active, [place for place, end in enumerate(ended) if end]))
            if finished is not None:
                finished(sorted(done[-1].row.tolist()), finished_trajectory(done[-1], sampler, model, hooks))
            active, row_ids = select(active, stay), [row_ids[place] for place in stay]
            last_finish = step
        if step - last_finish >= most_forwards + look_every:
            raise UserError(
                f"reveal rule {sampler.rule_name!r}: no row was finished in {step - last_finish} forwards; the rule "
                "must reveal at least one eligible position of every row that has any"
            )
    model.train(was_training)
    return finished_trajectory(join(done), sampler, model, hooks)


def finished_trajectory(
    finished: ActiveRows, sampler: Sampler, model: MaskedDiffusionLM, hooks: Sequence[Hook] = ()
) -> Trajectory:
    """Finished rows as a trajectory, with what hooks add to it, in the caller's order."""
    order = finished.row.argsort()
    same = ("prompt_ids", "prompt_mask", "reveal_step", "confidence", "entropy", "nfe", "queries")
    trajectory = Trajectory(
        **{name: getattr(finished, name)[order] for name in same},
        tokens=finished.tokens.masked_fill(finished.reveal_step < 0, model.pad_id)[order],
        scheduled_steps=finished.clock[order],
        sampler=sampler,
        mask_id=model.mask_id,
        eos_id=model.eos_id,
        structure=model.sampling_structure(sampler.block_length),
    )
    for hook in hooks:
        trajectory = hook.added_to(trajectory, finished.row[order])
    return trajectory
