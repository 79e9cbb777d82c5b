"""Algorithm 1 of the LFPO paper (arXiv 2603.01563), from top to bottom. Every objective runs through these lines.

Shapes: R rollouts of an iteration on all ranks, B of them on this rank; S views (noised inputs) of L tokens; T targets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lfpo.base import distributed
from lfpo.base.progress import Progress
from lfpo.base.rng import generator, key
from lfpo.models import MaskedDiffusionLM
from lfpo.models.fsdp import one_pass
from lfpo.models.lora import factors
from lfpo.models.roles import CURRENT, OLD
from lfpo.models.tensor_files import local
from lfpo.objectives.measures import Measures, add_measures, means_over_ranks, watched_routers
from lfpo.objectives.objective import Objective
from lfpo.objectives.predictions import Predictions
from lfpo.objectives.views import Views, fully_masked, passes
from lfpo.rollout.edits import in_rounds
from lfpo.runs.context import Context
from lfpo.train.collect import Batch
from lfpo.train.flops import Meter, rollout_flops, update_flops
from lfpo.train.optim import set_lr, step_if_finite
from lfpo.train.passes import equal_passes, logp_at_targets
from lfpo.train.signals import share_with_signal, signal_of

if TYPE_CHECKING:
    from lfpo.config.train import LFPOConfig
    from lfpo.train.rl import LFPOTrainer


@dataclass(frozen=True)
class Step:
    """One optimiser step: the rollouts of a block in one inner iteration.

    block: numbers of its rollouts among all R, int64. number: of the block. meter, measures: of the whole iteration;
    what this rank computes is added to them.
    """

    iteration: int
    inner: int
    number: int
    block: torch.Tensor
    meter: Meter = field(default_factory=Meter)
    measures: Measures = field(default_factory=dict)


def iterate(trainer: LFPOTrainer, iteration: int, context: Context) -> dict[str, Any]:
    """One iteration; returns its metrics. theta changes in phase 2 only, theta_old in phase 3 only."""
    args, policies, state = trainer.args, trainer.policies, trainer.state
    objective = trainer.objective.at_progress(iteration / args.max_steps)
    # Phase 1: each rank samples N rollouts for each of its prompts from theta_old, and scores them. With max_staleness
    # they were sampled ahead, from an earlier theta_old.
    started = time.perf_counter()
    with context.stop.at_once():
        batch = trainer.sample_and_score(iteration, context)  # tokens, reveal_step [B, C]; of all ranks: reward_R
    # What the loss takes instead of the reward: r in [0, 1] for LFPO, an advantage for others.
    # Rollouts without a reward are neutral.
    signal_R = signal_of(objective, batch.reward_R if batch.predicted_RM is None else batch.predicted_RM, batch.group_R)
    signal_B = batch.of_rank(signal_R)

    # Phase 2: an optimiser step after each block of rollouts; some objectives go through all blocks several times.
    update_started = time.perf_counter()
    meter, measures = Meter(rollout_flops(policies[OLD], batch.trajectory)), dict[str, torch.Tensor]()
    blocks = [] if batch.unscored else blocks_of(args, objective, iteration)
    steps = [
        Step(iteration, inner, number, block, meter, measures)
        for inner in range(objective.num_iterations)
        for number, block in enumerate(blocks)
    ]
    with trainer.old_policy(iteration, batch):
        found = [optimizer_step(trainer, objective, batch, signal_B, step, context) for step in steps]

    # Phase 3: theta_old <- alpha theta_old + (1 - alpha) theta.
    ema_update(policies[OLD], policies[CURRENT], args.ema_decay)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the clock must not stop while the GPU still works
    now = time.perf_counter()
    state["seconds"] += now - started
    state["flops"] += distributed.sum_number(meter.flops)
    trainer.log_rollouts(iteration, batch, signal_B, context)
    names = ("loss", "grad_norm", "learning_rate")
    means = {name: sum(step[name] for step in found) / (len(found) or math.nan) for name in names}
    return {
        "step": iteration + 1,
        **batch.metrics,
        "r": float(signal_R.mean()),
        "frac_signal": share_with_signal(objective, signal_R),
        **means,
        **means_over_ranks(measures),
        "skipped_updates": state["skipped"],
        "time/update": now - update_started,
        "time/total": state["seconds"],
        "flops": state["flops"],
    }


def blocks_of(args: LFPOConfig, objective: Objective, iteration: int) -> list[torch.Tensor]:
    """The rollouts of each of K optimiser steps, as numbers among all R; int64, ascending.

    Every K consecutive rollouts go to the K blocks in random order, or with `whole_groups` every K groups. So where K
    divides them, a group and a rank's rollouts are shared out evenly, and no rank waits for another. The blocks are the
    same at every number of ranks.
    """
    together = args.num_generations if objective.whole_groups else 1
    size, count = args.prompts_per_iteration * args.num_generations, args.optimizer_steps_per_iteration
    rng = generator(args.seed, iteration, "blocks")
    rounds = [torch.randperm(count, generator=rng) for _ in range(0, size, count * together)]
    block_R = torch.cat(rounds).repeat_interleave(together)[:size]
    return [(block_R == number).nonzero().flatten() for number in range(count)]


def optimizer_step(
    trainer: LFPOTrainer, objective: Objective, batch: Batch, signal_B: torch.Tensor, step: Step, context: Context
) -> dict[str, float]:
    """One update of theta from a block of rollouts; a non-finite gradient is counted and not applied."""
    args, policies = trainer.args, trainer.policies
    if step.inner == step.number == 0 and equal_weights(policies[OLD], policies[CURRENT]):
        policies = {**policies, OLD: policies[CURRENT]}  # one forward for both
    mine, trajectory = batch.mine(step.block), batch.trajectory
    signal_B = signal_B[mine] if len(mine) else signal_B[:1]  # the filler's
    # Noised inputs: input_ids, target [S, L]. For LFPO the states that the sampler visited at K steps of each rollout.
    filler = fully_masked(trajectory.rows(mine.new_zeros(1)))
    if len(mine):
        seeds = [key(batch.turns[b].seed, step.iteration) for b in mine.tolist()]
        views = objective.views(in_rounds(trajectory.rows(mine)), signal_B, seeds, step.inner)
    else:
        views = filler.select(mine)
    # The loss at the targets and its gradient, in passes of update_tokens tokens.
    policies[CURRENT].train()
    of, inners = args.optimizer_steps_per_iteration, objective.num_iterations
    context.progress.begin(f"update {step.inner * of + step.number + 1} of {of * inners}")
    loss, measured = accumulate_gradients(
        objective,
        policies,
        views,
        signal_B,
        update_tokens=args.update_tokens,
        meter=step.meter,
        filler=filler if args.fsdp else None,
        progress=context.progress,
    )
    add_measures(step.measures, measured)
    # The step.
    number, total = (step.iteration * inners + step.inner) * of + step.number, args.max_steps * inners * of
    lr = set_lr(trainer.optimizer, args, number, total)
    end = (policies[CURRENT], loss, args.max_grad_norm, context.event)
    loss, norm, stepped = step_if_finite(trainer.optimizer, *end)
    trainer.count(step.iteration, stepped=stepped)
    if stepped and trainer.average is not None:
        trainer.average.update()
    if step.inner * of + step.number < of * inners - 1:
        context.event("on_substep_end")
    return {"loss": loss, "grad_norm": norm, "learning_rate": lr}


def accumulate_gradients(
    objective: Objective,
    policies: Mapping[str, MaskedDiffusionLM],
    views: Views,
    signal_B: torch.Tensor,
    *,
    update_tokens: int,
    meter: Meter | None = None,
    filler: Views | None = None,
    progress: Progress | None = None,
) -> tuple[float, Measures]:
    """Add the gradient of one optimiser step's loss to theta's; returns this rank's part of the loss, and the measures
    of its passes.

    views: this rank's, [S, L]; the normaliser is summed over ranks, so gradients and losses of all ranks add up to
        those of one process with all views. signal_B: float64, on the policies' device; `views.row` points into it.
    update_tokens: tokens in one pass; bounds memory and never changes the result beyond rounding.
    meter: counts FLOPs, those of the objective's `prepare` too. progress: its phase counts
        the passes. filler: see lfpo.train.passes.equal_passes.
    """
    progress = progress or Progress()
    logp = partial(logp_at_targets, policies, update_tokens=update_tokens, meter=meter, filler=filler)
    views = objective.prepare(views, logp)
    pieces = [views.select(index).trim() for index in passes(views, update_tokens)]
    pieces = [piece for piece in pieces if piece.target.any()]
    normalizer = distributed.sum_number(objective.normalizer(views) if pieces else 0.0)
    if not normalizer:
        return 0.0, {}
    loss_sum, measures = 0.0, dict[str, torch.Tensor]()
    weighted = equal_passes(pieces, filler)
    progress.begin(progress.phase, len(weighted), "passes")
    for piece, weight in weighted:
        with one_pass(policies.values()), watched_routers(policies[CURRENT]) as balance:
            predictions = Predictions(piece, policies)  # hidden states [T, D], labels [T]
            loss, measured = objective.loss(predictions, signal_B)
            loss = weight * loss / normalizer
            loss.backward()
        loss_sum += loss.item()
        progress.advance()
        if weight:
            add_measures(measures, {**measured, **balance})
            if meter is not None:
                meter.flops += sum(update_flops(policies[p], piece, backward=p == CURRENT) for p in predictions.ran)
    return loss_sum, measures


@torch.no_grad()
def equal_weights(reference: MaskedDiffusionLM, model: MaskedDiffusionLM) -> bool:
    """Whether theta_old equals theta on all ranks, so that both predict the same. A collective."""
    pairs = zip(own_parameters(reference), own_parameters(model), strict=True)
    differ = any(old.dtype != new.dtype or not torch.equal(local(old).to(new.device), local(new)) for old, new in pairs)
    return not distributed.sum_number(float(differ))


@torch.no_grad()
def ema_update(reference: MaskedDiffusionLM, model: MaskedDiffusionLM, decay: float) -> None:
    """theta_old <- decay theta_old + (1 - decay) theta, in the reference's own dtype."""
    for old, new in zip(own_parameters(reference), own_parameters(model), strict=True):
        on_device = old.to(new.device)  # itself, unless it is kept in CPU memory
        on_device.lerp_(new.to(old.dtype), 1 - decay)
        if on_device is not old:
            old.copy_(on_device)


def own_parameters(policy: MaskedDiffusionLM) -> list[torch.nn.Parameter]:
    """The parameters that tell a policy from others on the same base: its adapter's, or all of them."""
    return list(policy.parameters()) if policy.adapter is None else [p for _, p in factors(policy)]
