"""Algorithm 1 of the LFPO paper (arXiv 2603.01563): read `LFPOTrainer.iterate`, then `optimizer_step`.

Every objective runs through these lines. Letters of shapes: B rollouts of an iteration on all ranks, b of them on this
rank, C completion tokens, S views (noised inputs), L prompt and completion tokens.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.errors import UserError
from lfpo.base.rng import generator, key
from lfpo.models import MaskedDiffusionLM
from lfpo.models.fsdp import gathered, shard
from lfpo.models.lora import settings_of
from lfpo.models.placement import sampling
from lfpo.models.roles import CURRENT, OLD
from lfpo.objectives import make_objective
from lfpo.objectives.measures import Measures, add_measures
from lfpo.objectives.views import Views, noised
from lfpo.rewards import RewardFunction
from lfpo.rollout.collect import Batch, collect, rollout_records
from lfpo.runs.directory import Run
from lfpo.runs.display import Display
from lfpo.runs.stopping import StopRequests
from lfpo.train.config import LFPOConfig
from lfpo.train.flops import Meter, rollout_flops
from lfpo.train.held_out import held_out
from lfpo.train.optim import build_adamw, lr_at, set_lr
from lfpo.train.run import TrainingRun, run_trainer
from lfpo.train.setup import check_ranks, load_policies, make_source, reward_weights, samplers
from lfpo.train.update import accumulate_gradients, ema_update

MAX_SKIPPED = 5  # updates in a row with a non-finite loss or gradient, after which training stops
MAX_FAILED = 5  # batches in a row for which a reward function fails, after which training stops


class LFPOTrainer:
    """Reinforcement learning of a masked diffusion language model, called the way TRL's trainers are.

    model: a checkpoint folder, hub id, "embedded", or a loaded MaskedDiffusionLM (then give its tokenizer too).
    reward_funcs: functions f(prompts, completions, **columns) -> list of numbers or None; None uses args.reward_funcs
        or the task's own.
    args: LFPOConfig. train_dataset, eval_dataset: rows (mappings) with a "prompt"; a list or a datasets.Dataset.
        None uses args.task or args.data_file.
    peft_config: a peft LoraConfig; the same as args.lora.
    Raises UserError for arguments that do not fit together.
    """

    kind = "train"

    def __init__(
        self,
        model: str | Path | MaskedDiffusionLM | None = None,
        reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
        args: LFPOConfig | None = None,
        train_dataset: Sequence[dict[str, Any]] | None = None,
        eval_dataset: Sequence[dict[str, Any]] | None = None,
        tokenizer: Any = None,
        peft_config: Any = None,
    ):
        args = args or LFPOConfig(output_dir="runs/lfpo")
        if peft_config is not None:
            args = replace(args, lora=settings_of(peft_config))
        self.args = args
        distributed.start()
        check_ranks(args)
        if args.threads:
            torch.set_num_threads(args.threads)
        self.objective = make_objective(args.objective)
        self.source = make_source(args, reward_funcs, train_dataset, eval_dataset)
        self.reward_weights = reward_weights(args, self.source)
        self.sampler, self.eval_samplers = samplers(args, self.source, self.objective)
        self.policies, self.tokenizer = load_policies(args, model, tokenizer, needs_base=self.objective.needs_base)
        self.model, self.reference = self.policies[CURRENT], self.policies[OLD]  # theta, theta_old
        if args.gradient_checkpointing:
            self.model.checkpoint_layers()
        self.optimizer = self._new_optimizer()
        # Training time and FLOPs without evaluation; skipped updates; reward function -> batches in a row it failed.
        self.state: dict[str, Any] = {"skipped": 0, "skipped_in_a_row": 0, "failing": {}, "seconds": 0.0, "flops": 0.0}
        # Set by the run that this trainer becomes part of.
        self.run = Run(Path(args.output_dir).expanduser(), silent=True)
        self.stop = StopRequests()
        self.note: Callable[[str], None] = print
        self.keep: Callable[[], str] = lambda: "nothing is saved"

    def train(self, *, resume: bool = False, display: Display | None = None) -> Path:
        """Run Algorithm 1 and return the folder of the trained model. `resume` continues output_dir's run.

        SIGTERM or SIGINT leaves a checkpoint of all finished iterations and raises Stopped, a KeyboardInterrupt.
        """
        return run_trainer(self, resume=resume, display=display)

    def iterate(self, iteration: int) -> dict[str, Any]:
        """One iteration of Algorithm 1; returns its metrics. The weights change in its second half only."""
        args, state, started = self.args, self.state, time.perf_counter()
        # Phase 1 (lines 4 to 6): each rank samples N rollouts for each of its prompts from theta_old, and scores them.
        with self.stop.at_once():
            batch = self.sample_rollouts(iteration)  # tokens, reveal_step [b, C]; reward_B of all ranks
        self._count_failures(batch.failed, iteration)
        # What the loss takes instead of the reward: r in [0, 1] for LFPO, an advantage for others.
        signal_B = self.objective.signal(batch.reward_B, batch.group_B)
        signal_b = signal_B[batch.first :][: len(batch.rows)].to(batch.trajectory.tokens.device)

        # Phase 2 (lines 9 to 15): an optimiser step after each block; some objectives go through all blocks again.
        update_started, measures, steps = time.perf_counter(), dict[str, torch.Tensor](), []
        meter = Meter(rollout_flops(self.reference, batch.trajectory))
        order_B = torch.randperm(len(signal_B), generator=generator(args.seed, iteration, "blocks"))
        blocks = [] if batch.unscored else order_B.tensor_split(args.optimizer_steps_per_iteration)
        for inner in range(self.objective.num_iterations):
            for number, block in enumerate(blocks):
                mine = block[(block >= batch.first) & (block < batch.first + len(signal_b))] - batch.first
                self._set_learning_rate(iteration, inner, number)
                steps.append(self.optimizer_step(batch, signal_b, mine, iteration, inner, meter, measures))

        # Phase 3 (line 17): theta_old <- alpha theta_old + (1 - alpha) theta.
        ema_update(self.reference, self.model, args.ema_decay)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the clock below must not stop while the GPU still works
        now = time.perf_counter()
        state["seconds"] += now - started
        state["flops"] += distributed.sum_number(meter.flops)
        if args.log_completions:
            records = distributed.gather_to_first(rollout_records(batch, signal_b, self.tokenizer))
            self.run.write_rows(f"rollouts/step-{iteration + 1}.jsonl", [row for part in records for row in part])
        metrics: dict[str, Any] = {"step": iteration + 1, **batch.metrics, "r": float(signal_B.mean())}
        metrics |= {k: _mean([step[k] for step in steps]) for k in ("loss", "grad_norm", "learning_rate")}
        metrics |= _means_over_ranks(measures) | {"skipped_updates": state["skipped"]}
        return metrics | {"time/update": now - update_started, "time/total": state["seconds"], "flops": state["flops"]}

    def optimizer_step(
        self,
        batch: Batch,
        signal_b: torch.Tensor,
        mine: torch.Tensor,
        iteration: int,
        inner: int,
        meter: Meter,
        measures: Measures,
    ) -> dict[str, float]:
        """One update of theta from a block of rollouts; a non-finite gradient is counted and not applied.

        mine: which of this rank's rollouts are in the block, int64. meter, measures: added to.
        """
        seeds = [key(batch.seeds[b], iteration) for b in mine.tolist()]
        rows, signal_of_rows = batch.trajectory.rows(mine), signal_b[mine]
        # Noised inputs [S, L] and targets [S, L]; for LFPO the states that the sampler visited at K timesteps.
        views = self.objective.views(rows, signal_of_rows, seeds, inner) if seeds else self._filler(batch).select(mine)
        # The loss at the targets and its gradient, in passes of update_tokens tokens.
        self.model.train()
        loss, measured = accumulate_gradients(
            self.objective,
            self.policies,
            views,
            signal_of_rows if seeds else signal_b,
            update_tokens=self.args.update_tokens,
            padding_free=self.args.padding_free,
            meter=meter,
            filler=self._filler(batch) if self.args.fsdp else None,
        )
        add_measures(measures, measured)
        loss = distributed.sum_number(loss)
        distributed.sum_gradients(self.model.parameters())
        norm = distributed.clip_gradients(self.model.parameters(), self.args.max_grad_norm)
        if math.isfinite(norm) and math.isfinite(loss):
            self.optimizer.step()
            self.state["skipped_in_a_row"] = 0
        else:
            self._count_skipped(iteration)
        self.optimizer.zero_grad()
        return {"loss": loss, "grad_norm": norm, "learning_rate": self.optimizer.param_groups[0]["lr"]}

    def sample_rollouts(self, iteration: int) -> Batch:
        """Scored rollouts of theta_old for this rank's share of the iteration's prompts."""
        args = self.args
        with self._sampling(self.reference):
            return collect(
                self.source,
                self.reference,
                self.tokenizer,
                self.sampler,
                iteration=iteration,
                n_prompts=args.prompts_per_iteration,
                n_generations=args.num_generations,
                seed=args.seed,
                rollout_tokens=args.rollout_tokens,
                rollout_compile=args.rollout_compile,
                reward_weights=self.reward_weights,
                reward_timeout=args.reward_timeout,
            )

    def _filler(self, batch: Batch) -> Views:
        """One view for passes of weight 0 (see `equal_passes`): this rank's first rollout, all of it masked."""
        row_S = torch.zeros(1, dtype=torch.long, device=batch.trajectory.tokens.device)
        masked_SC = torch.ones_like(batch.trajectory.tokens[row_S], dtype=torch.bool)
        return noised(batch.trajectory, row_S, masked_SC, batch.trajectory.counted[row_S])

    # What a run asks of its trainer (see lfpo.train.run.Trainer).

    @property
    def total_steps(self) -> int:
        return self.args.max_steps

    def attach(self, run: TrainingRun) -> None:
        self.run, self.stop, self.note, self.keep = run.folder, run.stop, run.note, run.keep

    def split(self) -> None:
        if self.args.fsdp:
            for policy in {id(p.backbone): p for p in (*self.policies.values(), self.reference)}.values():
                shard(policy)
            self.optimizer = self._new_optimizer()  # splitting made new parameters

    def evaluates_after(self, step: int) -> bool:
        return step % self.args.eval_steps == 0 or step == self.args.max_steps

    def evaluate(self, step: int) -> dict[str, float]:
        """Held-out results of theta under each eval sampler; the first few completions are kept in the run."""
        if not self.source.eval_rows:
            return {}
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        records: list[dict[str, Any]] = []
        for name, sampler in self.eval_samplers.items():
            with self._sampling(self.model):
                found, kept = held_out(
                    self.source,
                    self.model,
                    self.tokenizer,
                    sampler,
                    reward_weights=self.reward_weights,
                    reward_timeout=self.args.reward_timeout,
                    seed=self.args.seed,
                    rollout_tokens=self.args.rollout_tokens,
                )
            metrics |= {f"eval/{name}/{key}": value for key, value in found.items()}
            records += [{"sampler": name, **record} for record in kept]
        if self.args.log_completions:
            self.run.write_rows(f"eval/step-{step}.jsonl", records)
        return metrics | {"time/eval": time.perf_counter() - started}

    def export(self) -> MaskedDiffusionLM:
        return self.model

    def _sampling(self, policy: MaskedDiffusionLM) -> contextlib.AbstractContextManager[None]:
        """The policy made ready for many forwards without gradients."""
        if self.args.fsdp:
            return gathered(policy)
        # A compiled forward casts as it goes: it must find its weights where they were when it was compiled.
        cast = policy.autocast and not self.args.rollout_compile
        return sampling(policy, cast=cast, bring=self.args.offload_reference and policy is self.reference)

    def _new_optimizer(self) -> torch.optim.Optimizer:
        args = self.args
        return build_adamw(
            self.model,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            betas=(args.adam_beta1, args.adam_beta2),
            optim=args.optim,
        )

    def _set_learning_rate(self, iteration: int, inner: int, block: int) -> None:
        """The learning rate of one optimiser step, by the schedule over all of them."""
        args, inners, blocks = self.args, self.objective.num_iterations, self.args.optimizer_steps_per_iteration
        lr = lr_at(
            (iteration * inners + inner) * blocks + block,
            total=args.max_steps * inners * blocks,
            peak=args.learning_rate,
            schedule=args.lr_scheduler_type,
            warmup_steps=args.warmup_steps,
        )
        set_lr(self.optimizer, lr)

    def _count_failures(self, failed: dict[str, str], iteration: int) -> None:
        """Report a reward function the first time it fails; after MAX_FAILED batches in a row save and stop."""
        failing = self.state["failing"] = {name: self.state["failing"].get(name, 0) + 1 for name in failed}
        for name, times in failing.items():
            if times == 1:
                self.note(
                    f"reward function {name!r} failed in iteration {iteration + 1}: {failed[name]}; "
                    "its rewards of that batch count as None"
                )
            if times >= MAX_FAILED:
                raise UserError(
                    f"reward function {name!r} failed for {times} batches in a row, last with: {failed[name]}; "
                    f"{self.keep()}"
                )

    def _count_skipped(self, iteration: int) -> None:
        """Count an update that was not applied; after MAX_SKIPPED in a row stop."""
        self.state["skipped"] += 1
        self.state["skipped_in_a_row"] += 1
        if self.state["skipped_in_a_row"] >= MAX_SKIPPED:
            raise UserError(
                f"{self.args.output_dir}: loss or gradient was not finite {MAX_SKIPPED} times in a row (iteration "
                f"{iteration}); the weights are those before it; lower learning_rate, then --resume"
            )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _means_over_ranks(measures: Measures) -> dict[str, float]:
    """Sum over count of each measure, over the passes of all ranks; those that count nothing are left out."""
    ranks = distributed.gather({name: value.tolist() for name, value in measures.items()})
    means = {}
    for name in sorted({name for part in ranks for name in part}):
        total, count = (sum(part[name][i] for part in ranks if name in part) for i in (0, 1))
        if count:
            means[name] = total / count
    return means
