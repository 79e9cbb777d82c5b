"""How theta learns from scored rollouts: phases 2 and 3 of Algorithm 1 of the LFPO paper (arXiv 2603.01563). Every
objective runs through these lines. Phase 1 is lfpo.core.rollouts; lfpo.core.algorithm runs the three.

Shapes: R rollouts of an iteration on all ranks, B of them on this rank; S views (noised inputs) of L tokens; T targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lfpo.config.json import Json
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.batch import Batch, Update
from lfpo.core.batch_metrics import means_of_sums
from lfpo.core.collectives import local
from lfpo.core.failures import count_skipped
from lfpo.core.measures import Measures, add_measures
from lfpo.core.model import MaskedDiffusionLM
from lfpo.core.objective import Objective, check_range, signal_of, sum_of_signals
from lfpo.core.observer import Observer
from lfpo.core.optim import Average, ema_update, set_lr, step_if_finite
from lfpo.core.passes import dummy_views, logp_at_targets, with_fillers
from lfpo.core.predictions import Predictions, one_pass
from lfpo.core.rng import generator, key
from lfpo.core.roles import CURRENT, OLD
from lfpo.core.views import Views, in_passes


@dataclass
class Learner:
    """What learns from scored rollouts: phases 2 and 3 of an iteration.

    policies: by their names in lfpo.core.roles; theta is CURRENT, theta_old is OLD.
    optimizer: of theta. average: theta's moving average, which follows each step; None where none is kept.
    state: counters that checkpoints hold, changed in place: skipped, skipped_in_a_row.
    run_dir: named in errors.
    """

    args: LFPOConfig
    objective: Objective
    policies: Mapping[str, MaskedDiffusionLM]
    optimizer: torch.optim.Optimizer
    average: Average | None
    state: Json
    run_dir: Path
    checked_range: bool = False  # whether a scored batch was compared with what the objective needs of rewards

    def at(self, iteration: int) -> Objective:
        """The objective as it is in this iteration: some change in the course of a run."""
        return self.objective.at_progress(iteration / self.args.max_steps)

    def signal(self, batch: Batch, iteration: int) -> torch.Tensor:
        """What the loss takes instead of the reward: r in [0, 1] for LFPO, an advantage for others; float64 [R].
        Rollouts without a reward are neutral."""
        if not self.checked_range:
            check_range(self.at(iteration), batch.reward_R)
            self.checked_range = not batch.reward_R.isnan().all()
        if self.args.multi_objective_aggregation == "normalize_then_sum":
            weights = self.args.reward_weights or [1.0] * batch.parts_RK.shape[1]
            return sum_of_signals(self.at(iteration), batch.parts_RK, weights, batch.group_R)
        return signal_of(self.at(iteration), batch.reward_R, batch.group_R)

    def update(self, batch: Batch, signal_R: torch.Tensor, iteration: int, observer: Observer) -> dict[str, float]:
        """Phase 2: an optimiser step of theta after each block of rollouts; some objectives go through all blocks
        several times. Returns metrics, means over the steps. theta_old does not change. A collective."""
        objective, device = self.at(iteration), batch.trajectory.tokens.device
        signal_B = signal_R[batch.rollout_B].to(device)
        measures = dict[str, torch.Tensor]()
        # Without any reward there is nothing to learn from, and no step decays weights or moments.
        blocks = [] if batch.reward_R.isnan().all() else optimizer_blocks(self.args, objective, iteration)
        steps = [(inner, block) for inner in range(objective.num_iterations) for block in blocks]
        results = []
        for number, (inner, block) in enumerate(steps):
            step = Update(iteration, inner, block, number, len(steps))
            result, measured = optimizer_step(self, objective, batch, signal_B, step, observer)
            results.append(result)
            add_measures(measures, measured)
        names = ("loss", "grad_norm", "learning_rate")
        means = {name: sum(result[name] for result in results) / (len(results) or math.nan) for name in names}
        signal = {"r": float(signal_R.mean()), "frac_signal": share_with_signal(objective, signal_R)}
        sums = {name: value.tolist() for name, value in measures.items()}
        return {**signal, **means, **means_of_sums(collectives.gather(sums))}

    def move_old(self) -> None:
        """Phase 3: theta_old <- alpha theta_old + (1 - alpha) theta."""
        ema_update(self.policies[OLD], self.policies[CURRENT], self.args.ema_decay)


def optimizer_blocks(args: LFPOConfig, objective: Objective, iteration: int) -> list[torch.Tensor]:
    """The rollouts of each of K optimiser steps, as numbers among all R; int64, ascending.

    Each run of K consecutive rollouts gives one rollout to each block, in random order; with `whole_groups` each run of
    K groups gives one group. If K divides the rollouts of a group and of a rank, every block gets equally many of each,
    and no rank waits for another. The blocks do not depend on the number of ranks.
    """
    unit_size = args.num_generations if objective.whole_groups else 1
    size, count = args.prompts_per_iteration * args.num_generations, args.optimizer_steps_per_iteration
    rng = generator(args.seed, iteration, "blocks")
    rounds = [torch.randperm(count, generator=rng) for _ in range(0, size, count * unit_size)]
    block_R = torch.cat(rounds).repeat_interleave(unit_size)[:size]
    return [(block_R == number).nonzero().flatten() for number in range(count)]


def optimizer_step(
    learner: Learner, objective: Objective, batch: Batch, signal_B: torch.Tensor, step: Update, observer: Observer
) -> tuple[dict[str, float], Measures]:
    """One update of theta from a block of rollouts; a non-finite gradient is counted and not applied.

    signal_B: of this rank's rows, float64. Returns loss, grad_norm and learning_rate, and the measures of this rank's
    passes. A collective.
    """
    args, policies = learner.args, learner.policies
    rows, trajectory = torch.isin(batch.rollout_B, step.block).nonzero().flatten(), batch.trajectory
    seeds = [key(batch.turns[b].seed, step.iteration) for b in rows.tolist()]
    # Before the iteration's first step theta may still equal theta_old, as after a move with ema_decay 0.
    if step.number == 0 and equal_weights(policies[OLD], policies[CURRENT]):
        policies = {**policies, OLD: policies[CURRENT]}  # one forward for both
    # Where this rank may have to run a pass for which it has no views.
    filler = dummy_views(trajectory, policies[CURRENT]) if args.fsdp or not len(rows) else None
    # Noised inputs: input_ids, target [S, L]. For LFPO K random masks of each completion (states "noised", the
    # default), or K states that the sampler visited (states "stratified").
    if len(rows):
        signal_B, sampled = signal_B[rows], trajectory.rows(rows)
        if sampled.structure.block_length is not None:
            sampled = sampled.in_rounds()
        views = objective.views(sampled, signal_B, seeds, step.inner)
        views = policies[CURRENT].noised_views(views, seeds, step.inner)
        views = views if sampled.unscored is None else views.without(sampled.unscored)
    else:  # no views, but this rank joins the collectives below; any signal serves the filler, which gets weight 0
        assert filler is not None
        views, signal_B = filler.select(rows), signal_B[:1]
    # The loss at the targets and its gradient, in passes of update_tokens tokens.
    theta = policies[CURRENT]
    theta.train()
    observer.begin(f"update {step.number + 1} of {step.of}")
    loss, measured = accumulate_gradients(
        objective,
        policies,
        views,
        signal_B,
        update_tokens=args.update_tokens,
        filler=filler if args.fsdp else None,
        observer=observer,
    )
    # Optimiser steps before this one, and of the whole run: max_steps counts iterations.
    lr = set_lr(learner.optimizer, args, step.iteration * step.of + step.number, args.max_steps * step.of)
    loss, norm, stepped = step_if_finite(learner.optimizer, theta, loss, args.max_grad_norm, observer.event)
    if stepped:
        learner.state["skipped_in_a_row"] = 0
        if learner.average is not None:
            learner.average.update()
    else:
        count_skipped(learner.state, learner.run_dir, step.iteration)
    if step.number < step.of - 1:
        observer.event("on_substep_end")
    return {"loss": loss, "grad_norm": norm, "learning_rate": lr}, measured


def accumulate_gradients(
    objective: Objective,
    policies: Mapping[str, MaskedDiffusionLM],
    views: Views,
    signal_B: torch.Tensor,
    *,
    update_tokens: int,
    filler: Views | None = None,
    observer: Observer | None = None,
) -> tuple[float, Measures]:
    """Add the gradient of one optimiser step's loss to theta's; returns this rank's part of the loss, and the measures
    of its passes.

    views: this rank's, [S, L]; the normaliser is summed over ranks, so gradients and losses of all ranks add up to
        those of one process with all views. signal_B: float64, on the policies' device; `views.row` points into it.
    update_tokens: tokens in one pass; bounds memory and never changes the result beyond rounding.
    filler: see with_fillers. observer: its phase counts the passes.
    """
    observer = observer or Observer()
    logp = partial(logp_at_targets, policies, update_tokens=update_tokens, filler=filler, observer=observer)
    views = objective.before_passes(views, logp)
    normalizer = collectives.sum_number(objective.normalizer(views) if bool(views.target.any()) else 0.0)
    if not normalizer:
        return 0.0, {}
    pieces, _ = in_passes(views, update_tokens)
    loss_sum, measures = 0.0, dict[str, torch.Tensor]()
    if filler is not None:
        pieces = with_fillers(pieces, filler)
    observer.begin(observer.phase, len(pieces), "passes")
    for piece in pieces:
        weight = float(piece is not filler)
        with one_pass(policies.values()) as balance:  # measures of routers, where there are any
            predictions = Predictions(piece, policies)  # hidden states [T, D], labels [T]
            loss, measured = objective.loss(predictions, signal_B)
            loss = weight * loss / normalizer
            loss.backward()
        loss_sum += loss.item()
        observer.advance()
        if weight:
            add_measures(measures, {**measured, **balance})
            if observer.passes is not None:
                for policy, ran in predictions.ran:
                    observer.passes.append(ran.ran_by(policy, backward=policy == CURRENT))
    return loss_sum, measures


@torch.no_grad()
def equal_weights(reference: MaskedDiffusionLM, model: MaskedDiffusionLM) -> bool:
    """Whether theta_old equals theta on all ranks, so that both predict the same. A collective."""
    differ = False
    for old, new in zip(reference.own_parameters(), model.own_parameters(), strict=True):
        differ = differ or old.dtype != new.dtype or not torch.equal(local(old).to(new.device), local(new))
    return not collectives.sum_number(float(differ))


def share_with_signal(objective: Objective, signal_R: torch.Tensor) -> float:
    """The share of rollouts whose signal is not neutral."""
    return float(((signal_R - objective.neutral).abs() > 1e-9).double().mean())
