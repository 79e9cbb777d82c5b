"""The denoising loop: prompts in, trajectories out.

This is line 4 of Algorithm 1. A completion starts as C mask tokens, in blocks that are filled one after the other. Each
step predicts all masked tokens of a row's active block at once, draws a token for each, and reveals some of them; the
others stay masked and are drawn anew at the next step. Which ones are revealed, and how many, a reveal rule says:
LLaDA's (arXiv 2502.09992), or another that the settings name.

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
from lfpo.core.completions import SpecialTokens
from lfpo.core.forward import Forward, before_first_step, block_sizes, join, select
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
) -> Trajectory:
    """Denoise one completion for each of B prompts that fit the model; lfpo.rollout.sampling.rollout says what most
    arguments are.

    sampler: with its lengths filled in. rule: the reveal rule that it selects.
    forward_type: of what runs the model for the rows in flight.
    hooks: called after each forward, before the rows change.
    """
    device = model.device
    # What is known before the first forward: the positions of each block of each row, and how many of them each step
    # reveals, by the schedule of the settings.
    sizes_of_rows = [block_sizes(len(prompt), sampler, model) for prompt in prompts]
    counts = reveal_schedule(sampler, rule) if rule.schedule else torch.zeros(0, dtype=torch.long)
    # On a GPU each question to the device waits for all queued work. A rule whose numbers of reveals follow from the
    # schedule has a plan, and with it the loop knows without asking how many positions are masked, and often also when
    # a row ends.
    pace = None
    if rule.plan is not None:
        knows_ends = not (sampler.stops_at_eos or model.block_length)
        known = {"knows_ends": knows_ends, "stores_blocks": forward_type.stores_blocks}
        pace = Pace(rule.plan, sampler, counts.tolist(), seeds, sizes_of_rows, **known)
    forward = forward_type(model, sampler, prompts, pace=pace, compiled=compiled, rollout_tokens=rollout_tokens)
    denoiser = Denoiser(model, sampler, rule, counts.to(device), hooks, forward)
    rows = before_first_step(prompts, seeds, sampler, model)
    # Over a causal context a row's first forward reads the prompt and stores it.
    rows.storing |= forward.runs_between_blocks and forward.structure.causal

    # Longest first: memory is highest at the start, and rows of similar length run together.
    lengths = list(map(len, prompts))
    waiting = sorted(range(len(prompts)), key=lengths.__getitem__, reverse=True)  # ties stay in order
    row_ids: list[int] = []  # active.row, known without asking the device
    active, done = select(rows, []), []  # rows in flight; rows that have left, as they left
    columns = rows.tokens.shape[1]
    # Each forward of a row reveals at least one token, or stores a block, or may edit a block without masks. A rule
    # that reveals nothing would run for ever: after so many forwards without the end of a row it is an error.
    without_reveal = forward.runs_between_blocks + (sampler.max_post_steps if sampler.edits else 0)
    most_forwards = columns + without_reveal * max(map(len, sizes_of_rows))
    look_every = LOOK_EVERY.get(device.type, 1)
    ask_device = look_every == 1 or pace is None or not pace.knows_ends
    step = last_finish = 0
    was_training = model.training
    model.eval()
    while waiting or row_ids:
        # 1. Waiting prompts take the places of finished rows, as many as rollout_tokens has room for. The first row in
        # flight is the longest, because rows entered longest first and keep their order.
        longest = len(prompts[(row_ids or waiting)[0]]) + columns
        room = forward.rows_at_once(longest) - len(row_ids)
        if waiting and room > 0:
            row_ids, waiting, entering = row_ids + waiting[:room], waiting[room:], waiting[:room]
            active = join([active, select(rows, entering)])
        # 2. One forward of all rows in flight: hidden states [A, block_length, D] of their active blocks.
        hidden = forward.hidden(active, row_ids)
        # 3. Draw a token at each masked position of these blocks; the reveal rule says which of them stay. On a GPU the
        # number of these positions must be known here: exactly by the plan, or an upper bound.
        at_most = len(row_ids) * sampler.block_length  # masked positions of the active blocks
        denoiser.step(active, hidden, at_most if pace is None else pace.advance(row_ids))
        step += 1
        if forwarded is not None:
            forwarded(len(row_ids))
        # 4. Finished rows leave. Between two looks they stay in the batch, unchanged. A plan may know who is finished.
        ended: list[bool] = []
        if pace is not None and not ask_device:
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
        # A row that stopped at EOS still has masks after it.
        tokens=finished.tokens.masked_fill(finished.reveal_step < 0, model.pad_id)[order],
        scheduled_steps=finished.clock[order],  # also those that revealed nothing and needed no forward
        sampler=sampler,
        special=SpecialTokens(model.mask_id, model.eos_id),
        structure=model.sampling_structure(sampler.block_length),
    )
    for hook in hooks:
        trajectory = hook.added_to(trajectory, finished.row[order])
    return trajectory
