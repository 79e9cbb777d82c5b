"""How theta learns from scored rollouts: phases 2 and 3 of Algorithm 1 of the LFPO paper (arXiv 2603.01563). Every
objective runs through these lines. Phase 1 is lfpo.core.rollouts; lfpo.core.algorithm runs the three.

    reward -> signal                 Learner.signal: how good a rollout is; for LFPO r in [0, 1] of Eq. 10
    rollouts -> blocks               optimizer_blocks: one optimiser step each (Algorithm 1, line 9)
    a block -> views                 optimizer_step: its completions again, partly masked (line 11; Eq. 11)
    views -> gradient                accumulate_gradients: the loss where tokens are masked (line 12; Eq. 8 to 10)
    gradient -> theta                optimizer_step: AdamW (line 13)
    theta -> theta_old               Learner.move_old (line 17; Eq. 12)

LFPO asks each masked position for the token that finally stood there, so it never needs the likelihood of a whole
completion. Other objectives estimate that one from the same views.

Shapes: R rollouts of an iteration on all ranks, B of them on this rank; S views (noised inputs) of L tokens; T targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from lfpo.config.json import Json
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.batch import Batch, Update
from lfpo.core.batch_metrics import means_of_sums
from lfpo.core.collectives import local
from lfpo.core.measures import Measures, add_measures
from lfpo.core.model import CURRENT, OLD, MaskedDiffusionLM
from lfpo.core.objective import Objective, check_range, signal_of, sum_of_signals
from lfpo.core.observer import Observer
from lfpo.core.optim import ema_update, take_step
from lfpo.core.passes import dummy_views, logp_at_targets, with_dummy_passes
from lfpo.core.predictions import Predictions, one_pass
from lfpo.core.rng import generator, key
from lfpo.core.views import Views, in_passes


@dataclass
class Learner:
    """What learns from scored rollouts: phases 2 and 3 of an iteration.

    policies: by their names in lfpo.core.model; theta is CURRENT, theta_old is OLD.
    optimizer: of theta. state: counters that checkpoints hold, changed in place: skipped, skipped_in_a_row.
    after_step: called after each step that is taken; theta's moving average follows it there.
    """

    args: LFPOConfig
    objective: Objective
    policies: Mapping[str, MaskedDiffusionLM]
    optimizer: torch.optim.Optimizer
    state: Json
    after_step: Callable[[], object] | None = None
    checked_range: bool = False  # whether a scored batch was compared with what the objective needs of rewards

    def at(self, iteration: int) -> Objective:
        """The objective as it is in this iteration: some change in the course of a run."""
        return self.objective.at_progress(iteration / self.args.max_steps)

    def signal(self, batch: Batch, iteration: int) -> torch.Tensor:
        """What the loss takes instead of the reward: r in [0, 1] for LFPO (Eq. 10), an advantage for others; float64
        [R]. Rollouts without a reward are neutral."""
        if not self.checked_range:
            check_range(self.at(iteration), batch.reward_R)
            self.checked_range = not batch.reward_R.isnan().all()  # NaN passes any check: look again next time
        if self.args.multi_objective_aggregation == "normalize_then_sum":
            weights = self.args.reward_weights or [1.0] * batch.parts_RK.shape[1]
            return sum_of_signals(self.at(iteration), batch.parts_RK, weights, batch.group_R)
        return signal_of(self.at(iteration), batch.reward_R, batch.group_R)

    def update(self, batch: Batch, signal_R: torch.Tensor, iteration: int, observer: Observer) -> dict[str, float]:
        """Phase 2: an optimiser step of theta after each block of rollouts; some objectives go through all blocks
        several times. Returns metrics, means over the steps. theta_old does not change. A collective."""
        objective, device = self.at(iteration), batch.trajectory.tokens.device
        # Signals are of all R rollouts on all ranks, because they compare groups; views are of this rank's rows only.
        # A rollout has several rows where an environment plays in turns; each row takes its rollout's signal.
        signal_B = signal_R[batch.rollout_B].to(device)
        measures = dict[str, torch.Tensor]()
        # Without any reward there is nothing to learn from, and no step decays weights or moments.
        blocks = [] if batch.reward_R.isnan().all() else optimizer_blocks(self.args, objective, iteration)
        # Algorithm 1 takes a step after each block, the paper's text one step for all of them: the number of blocks
        # (optimizer_steps_per_iteration) decides which.
        steps = [(inner, block) for inner in range(objective.num_iterations) for block in blocks]
        results = []
        for number, (inner, block) in enumerate(steps):
            step = Update(iteration, inner, block, number, len(steps))
            result, measured = optimizer_step(self, objective, batch, signal_B, step, observer)
            results.append(result)
            add_measures(measures, measured)
        names = ("loss", "grad_norm", "learning_rate")
        # NaN where no step was taken.
        means = {name: sum(result[name] for result in results) / (len(results) or math.nan) for name in names}
        signal = {"r": float(signal_R.mean()), "frac_signal": share_with_signal(objective, signal_R)}
        sums = {name: value.tolist() for name, value in measures.items()}
        return {**signal, **means, **means_of_sums(collectives.gather(sums))}

    def move_old(self) -> None:
        """Phase 3 (line 17, Eq. 12): theta_old <- alpha theta_old + (1 - alpha) theta, alpha = ema_decay."""
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
    # 1. This rank's rows of the block, and the policies. The noise of a rollout is a function of its own seed, not of
    # its place in a batch or on a rank.
    rows, trajectory = torch.isin(batch.rollout_B, step.block).nonzero().flatten(), batch.trajectory
    seeds = [key(batch.turns[b].seed, step.iteration) for b in rows.tolist()]
    # Before the iteration's first step theta may still equal theta_old, as after a move with ema_decay 0.
    if step.number == 0 and equal_weights(policies[OLD], policies[CURRENT]):
        policies = {**policies, OLD: policies[CURRENT]}  # one forward for both
    # Under FSDP every pass is a collective: a rank runs a dummy view where the others have one pass more. Without FSDP
    # a rank without rows needs it only to make views of, of which there are then none.
    dummy = dummy_views(trajectory, policies[CURRENT]) if args.fsdp or not len(rows) else None
    # 2. Noised inputs: input_ids, target [S, L]. For LFPO K random masks of each completion (states "noised", the
    # default), or K states that the sampler visited (Eq. 11; states "stratified"). Where tokens are noised in another
    # way than by masks, the model says so (noised_views).
    if len(rows):
        signal_B, sampled = signal_B[rows], trajectory.rows(rows)
        if sampled.structure.block_length is not None:
            sampled = sampled.in_rounds()  # so that one forward replays a step of every block
        views = objective.views(sampled, signal_B, seeds, step.inner)
        views = policies[CURRENT].noised_views(views, seeds, step.inner)
    else:  # no views, but this rank joins the collectives below; any signal serves the dummy, which gets weight 0
        assert dummy is not None
        views, signal_B = dummy.select(rows), signal_B[:1]
    # 3. The loss at the targets (Eq. 8 to 10 for LFPO) and its gradient, in passes of update_tokens tokens.
    theta = policies[CURRENT]
    theta.train()  # transformers checkpoints activations in training mode only
    observer.begin(f"optimiser step {step.number + 1} of {step.of}")
    loss, measured = accumulate_gradients(
        objective,
        policies,
        views,
        signal_B,
        update_tokens=args.update_tokens,
        dummy=dummy if args.fsdp else None,
        observer=observer,
    )
    # 4. theta <- theta - lr AdamW(gradient), the gradient clipped to max_grad_norm over all ranks (Algorithm 1, line
    # 13). The learning rate follows optimiser steps: those before this one, of those of the whole run.
    taken = take_step(
        *(learner.optimizer, theta, args, loss),
        number=step.iteration * step.of + step.number,
        total=args.max_steps * step.of,
        state=learner.state,
        observer=observer,
        after_step=learner.after_step,
    )
    if step.number < step.of - 1:  # as in transformers, whose on_step_end follows the last step
        observer.event("on_substep_end")
    return taken, measured


def accumulate_gradients(
    objective: Objective,
    policies: Mapping[str, MaskedDiffusionLM],
    views: Views,
    signal_B: torch.Tensor,
    *,
    update_tokens: int,
    dummy: Views | None = None,
    observer: Observer | None = None,
) -> tuple[float, Measures]:
    """Add the gradient of one optimiser step's loss to theta's; returns this rank's part of the loss, and the measures
    of its passes.

    views: this rank's, [S, L]; the normaliser is summed over ranks, so gradients and losses of all ranks add up to
        those of one process with all views. signal_B: float64, on the policies' device; `views.row` points into it.
    update_tokens: tokens in one pass; bounds memory and never changes the result beyond rounding.
    dummy: see with_dummy_passes. observer: its phase counts the passes.
    """
    observer = observer or Observer()
    logp = partial(logp_at_targets, policies, update_tokens=update_tokens, dummy=dummy, observer=observer)
    views = objective.before_passes(views, logp)
    # The loss of a step is a sum over targets divided by one number for all passes and all ranks. So neither the cut
    # into passes nor the number of ranks changes it. Ranks without targets join the sum; an objective's normaliser need
    # not know of them. Where no rank has any, nothing is learned, and all ranks leave here.
    normalizer = collectives.sum_number(objective.normalizer(views) if bool(views.target.any()) else 0.0)
    if not normalizer:
        return 0.0, {}
    pieces, _ = in_passes(views, update_tokens)  # views of similar length, which share little padding
    loss_sum, measures = 0.0, dict[str, torch.Tensor]()
    if dummy is not None:
        pieces = with_dummy_passes(pieces, dummy)
    observer.begin(observer.phase, len(pieces), "micro-batches")
    for piece in pieces:
        weight = float(piece is not dummy)  # a dummy's backward runs, for the collectives, and adds zeros
        with one_pass(policies.values()) as balance:  # measures of routers, where there are any
            # Nothing runs yet: each policy does when the loss first asks for its hidden states [T, D].
            predictions = Predictions(piece, policies)
            loss, measured = objective.loss(predictions, signal_B)
            loss = weight * loss / normalizer
            # The fused loss has made the gradient at the hidden states and the head already (core/fused.py). This adds
            # them to the gradients, continues through the layers and frees this pass's activations.
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
