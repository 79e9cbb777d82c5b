"""Algorithm 1 of the LFPO paper, and the trainer around it. Any objective runs through this same loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lfpo.base import distributed
from lfpo.base.config import to_dict
from lfpo.base.errors import UserError
from lfpo.base.rng import generator, key
from lfpo.models import MaskedDiffusionLM
from lfpo.models.fsdp import gathered, shard
from lfpo.models.lora import settings_of
from lfpo.models.placement import sampling
from lfpo.models.roles import CURRENT, OLD
from lfpo.objectives import make_objective
from lfpo.report import write_report
from lfpo.rewards import RewardFunction, Rewards
from lfpo.rollout.collect import Batch, batch_metrics, collect, rollout_records
from lfpo.runs.card import model_card
from lfpo.runs.directory import Run, given_up_if_unbegun, open_run, opened_by_this_launcher
from lfpo.runs.display import Display
from lfpo.runs.stopping import Stopped, StopSignals
from lfpo.runs.trackers import reporting
from lfpo.train.checkpoint import (
    export_model,
    latest_checkpoint,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from lfpo.train.config import LFPOConfig
from lfpo.train.flops import Meter, rollout_flops
from lfpo.train.held_out import held_out
from lfpo.train.optim import build_adamw, lr_at, set_lr
from lfpo.train.setup import load_policies, make_source
from lfpo.train.update import accumulate_gradients, ema_update

MAX_SKIPPED = 5  # non-finite updates in a row before training stops
MAX_FAILED = 5  # batches in a row for which a reward function fails, likewise


class LFPOTrainer:
    """Reinforcement learning of a masked diffusion language model, called the way TRL's trainers are.

    model: a checkpoint folder, hub id, "embedded", or a loaded MaskedDiffusionLM (then give its tokenizer too).
    reward_funcs: functions f(prompts, completions, **columns) -> list of numbers or None; None uses args.reward_funcs
        or the task's own.
    args: LFPOConfig. train_dataset, eval_dataset: rows (mappings) with a "prompt"; a list or a datasets.Dataset.
        None uses args.task or args.data_file.
    peft_config: a peft LoraConfig; the same as args.lora.
    """

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
        self.rank, self.world = distributed.rank(), distributed.world()
        if self.world > args.prompts_per_iteration:
            raise UserError(
                f"{self.world} processes for {args.prompts_per_iteration} prompts_per_iteration: each needs one at "
                "least; start fewer processes or take more prompts"
            )
        if args.fsdp and not torch.distributed.is_initialized():
            raise UserError("fsdp needs several processes: torchrun --nproc_per_node N -m lfpo train ... --fsdp true")
        if args.threads:
            torch.set_num_threads(args.threads)
        self.objective = make_objective(args.objective)
        self.source = make_source(args, reward_funcs, train_dataset, eval_dataset)
        self.reward_weights = args.reward_weights or [1.0] * len(self.source.reward_functions)
        if len(self.reward_weights) != len(self.source.reward_functions):
            raise UserError(
                f"reward_weights: {len(self.reward_weights)} weights for {len(self.source.reward_functions)} functions"
            )
        try:
            self.sampler = args.sampler.for_length(self.source.gen_length)
            length = self.sampler.gen_length or 0
            self.eval_samplers = {name: s.for_length(length) for name, s in args.eval_samplers.items()}
        except ValueError as error:
            raise UserError(f"sampler: {error}") from error
        if hasattr(self.objective, "check_sampler"):
            self.objective.check_sampler(self.sampler)
        self.policies, self.tokenizer = load_policies(args, model, tokenizer, needs_base=self.objective.needs_base)
        self.model, self.reference = self.policies[CURRENT], self.policies[OLD]
        if args.gradient_checkpointing:
            self.model.checkpoint_layers()
        self.optimizer = self._new_optimizer()
        self.skipped = self.skipped_in_a_row = 0
        self.failing: dict[str, int] = {}  # reward function -> batches in a row for which it has failed
        # Training time and arithmetic so far, evaluation aside, carried over a resume.
        self.seconds, self.meter, self.update_meter = 0.0, Meter(), Meter()
        # Iterations in the weights, those in a checkpoint, and metrics that wait for their evaluation and logging.
        self.done = self.saved = 0
        self.unlogged: dict[str, Any] | None = None

    def train(self, *, resume: bool = False, display: Display | None = None) -> Path:
        """Run Algorithm 1 and return the folder of the trained model. `resume` continues output_dir's run.

        SIGTERM or SIGINT leaves a checkpoint of all finished iterations and raises Stopped, a KeyboardInterrupt. Of
        several processes one that is lost ends the others (see lfpo.base.distributed.watched).
        """
        with distributed.watched(self.args.rank_timeout, self.args.progress_timeout):
            return self._train(resume, display)

    def _train(self, resume: bool, display: Display | None) -> Path:
        args = self.args
        # The first process decides for all: the others may have been started by a launcher on another machine.
        again = distributed.gather(distributed.launched() and opened_by_this_launcher(Path(args.output_dir)))[0]
        resume = resume or again
        if self.rank == 0:
            self.run = open_run(Path(args.output_dir), args, resume=resume, kind="train")
        else:
            self.run = Run(Path(args.output_dir).expanduser(), silent=True)
            display = Display(args.max_steps, Console(quiet=True))
        distributed.barrier()
        display = display or Display(args.max_steps)
        first = self._restore(display.note) if resume else self._build(None)
        distributed.at_work = self.world > 1
        tracked = reporting(args.report_to, self.run, to_dict(args), done=first)
        with given_up_if_unbegun(self.run), display, tracked, StopSignals() as stop:
            try:
                if first == 0:
                    with stop.at_once():
                        base = self._evaluate(0)
                    self._log({"step": 0, **base}, display)
                elif self.unlogged is not None:
                    self._finish(first, self.unlogged, stop, display)
                for iteration in range(first, args.max_steps):
                    self._finish(iteration + 1, self.iterate(iteration, stop, display), stop, display)
                    stop.check()
            except Stopped as stopped:
                raise Stopped(stopped.number, f"{stopped}: {self._keep_on_stop()}") from None
        return export_model(self.run.dir, self.model, self.tokenizer, card=self._card())

    def iterate(self, iteration: int, stop: StopSignals, display: Display) -> dict[str, Any]:
        """One iteration of Algorithm 1; returns its metrics. The weights change in its second half only."""
        args, started = self.args, time.perf_counter()
        with stop.at_once():
            # Phase 1: sample N rollouts a prompt from theta_old and score them (lines 4-6).
            batch = self.sample_rollouts(iteration)
        self._count_failures(batch.rewards, iteration, display)
        signal = self.objective.signal(batch.rewards.total, batch.group)
        self.meter.flops += rollout_flops(self.reference, batch.trajectory)
        # Phase 2: a step after each block of rollouts (lines 9-15); some peers go through them several times.
        update_started = time.perf_counter()
        order = torch.randperm(len(signal), generator=generator(args.seed, iteration, "blocks"))
        updates = [
            self._optimizer_step(batch, signal, block, iteration, inner, number)
            for inner in range(0 if batch.rewards.nothing else self.objective.num_iterations)
            for number, block in enumerate(order.tensor_split(args.optimizer_steps_per_iteration))
        ]
        self.meter.flops += distributed.sum_number(self.update_meter.flops)
        self.update_meter.flops = 0.0
        # Phase 3: the reference follows (line 17).
        ema_update(self.reference, self.model, args.ema_decay)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # or the clock stops while the GPU still works
        update_seconds = time.perf_counter() - update_started
        self.seconds += time.perf_counter() - started
        self.done = iteration + 1

        metrics = {"step": self.done, **batch_metrics(batch), "r": float(signal.mean())}
        keys = ("loss", "grad_norm", "learning_rate")
        metrics |= {k: sum(u[k] for u in updates) / len(updates) if updates else math.nan for k in keys}
        metrics |= {"skipped_updates": self.skipped, "time/rollout": batch.rollout_seconds}
        metrics |= {"time/reward": batch.reward_seconds, "time/update": update_seconds}
        metrics |= {"time/total": self.seconds, "flops": self.meter.flops}
        if args.log_completions:
            self.run.write_rows(f"rollouts/step-{self.done}.jsonl", rollout_records(batch, signal, self.tokenizer))
        return metrics

    def _finish(self, step: int, metrics: dict[str, Any], stop: StopSignals, display: Display) -> None:
        """What follows an iteration: evaluation, log, checkpoint."""
        args, self.unlogged = self.args, metrics
        if step % args.eval_steps == 0 or step == args.max_steps:
            with stop.at_once():
                metrics = metrics | self._evaluate(step)
        self._log(metrics, display)
        self.unlogged = None
        if step % args.save_steps == 0 or step == args.max_steps:
            self._save(step)

    def _count_failures(self, rewards: Rewards, iteration: int, display: Display) -> None:
        """Name a reward function that fails, the first time in a row; at MAX_FAILED save what is learned and stop."""
        self.failing = {name: self.failing.get(name, 0) + 1 for name in rewards.failed}
        for name, times in self.failing.items():
            if times == 1:
                display.note(
                    f"reward function {name!r} failed in iteration {iteration + 1}: {rewards.failed[name]}; "
                    "its rewards of that batch count as None"
                )
            if times >= MAX_FAILED:
                raise UserError(
                    f"reward function {name!r} failed for {times} batches in a row, last with: {rewards.failed[name]}; "
                    f"{self._keep_on_stop()}"
                )

    def _keep_on_stop(self) -> str:
        """Save what was learned since the last checkpoint, and say how to go on."""
        if self.done == 0:
            return f"no iteration was finished; --resume starts {self.run.dir} from the beginning"
        if self.saved < self.done:
            self._save(self.done)
        return f"{self.run.dir}/checkpoints/step-{self.done} holds everything learned; --resume continues"

    def _sampling(self, policy: MaskedDiffusionLM) -> contextlib.AbstractContextManager[None]:
        """The policy made ready to sample with."""
        if self.args.fsdp:
            return gathered(policy)
        # A compiled forward casts as it goes, for it must find its weights where they were.
        cast = policy.autocast and not self.args.rollout_compile
        return sampling(policy, cast=cast, bring=self.args.offload_reference and policy is self.reference)

    def _build(self, checkpoint: Path | None) -> int:
        """Split weights where asked for, which makes other parameters of them, and restore the optimiser; returns 0."""
        if self.args.fsdp:
            for policy in {id(p.backbone): p for p in (*self.policies.values(), self.reference)}.values():
                shard(policy)
            self.optimizer = self._new_optimizer()
        if checkpoint is not None:
            load_optimizer(self.optimizer, checkpoint)
        return 0

    def _new_optimizer(self) -> torch.optim.Optimizer:
        args = self.args
        return build_adamw(
            self.model,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            betas=(args.adam_beta1, args.adam_beta2),
            optim=args.optim,
        )

    def sample_rollouts(self, iteration: int) -> Batch:
        """Phase 1: scored rollouts for one iteration's prompts, from theta_old."""
        with self._sampling(self.reference):
            return collect(
                self.source,
                self.reference,
                self.tokenizer,
                self.sampler,
                iteration=iteration,
                n_prompts=self.args.prompts_per_iteration,
                n_generations=self.args.num_generations,
                seed=self.args.seed,
                rollout_tokens=self.args.rollout_tokens,
                rollout_compile=self.args.rollout_compile,
                reward_weights=self.reward_weights,
                reward_timeout=self.args.reward_timeout,
            )

    def _optimizer_step(
        self, batch: Batch, signal: torch.Tensor, block: torch.Tensor, iteration: int, inner: int, number: int
    ) -> dict[str, float]:
        """One update from the rollouts listed in `block`; a non-finite gradient is counted, never applied.

        Of several processes each computes its share of the block's rollouts.
        """
        args, passes = self.args, self.objective.num_iterations
        lr = lr_at(
            (iteration * passes + inner) * args.optimizer_steps_per_iteration + number,
            total=args.max_steps * passes * args.optimizer_steps_per_iteration,
            peak=args.learning_rate,
            schedule=args.lr_scheduler_type,
            warmup_steps=args.warmup_steps,
        )
        set_lr(self.optimizer, lr)
        # Every process takes part in a split model's forwards, also when it has no rollouts of its own: then with
        # those of another, which count nothing.
        idle = self.rank >= len(block)
        mine = block[:1] if idle else block[self.rank :: self.world]
        seeds = [key(batch.seeds[b], iteration) for b in mine.tolist()]
        views = self.objective.views(batch.trajectory.rows(mine), signal[mine], seeds, inner)
        if args.fsdp and not views.target.any():
            # Nothing of its own to learn from: through some views of the block all the same.
            idle, mine = True, block
            seeds = [key(batch.seeds[b], iteration) for b in mine.tolist()]
            views = self.objective.views(batch.trajectory.rows(mine), signal[mine], seeds, inner)
        self.model.train()
        loss = accumulate_gradients(
            self.objective,
            self.policies,
            views,
            signal[mine],
            update_tokens=args.update_tokens,
            padding_free=args.padding_free,
            meter=self.update_meter,
            idle=idle,
            in_step=args.fsdp,
        )
        loss = distributed.sum_number(loss)
        distributed.sum_gradients(self.model.parameters())
        norm = distributed.clip_gradients(self.model.parameters(), args.max_grad_norm)
        if torch.isfinite(torch.tensor([norm, loss])).all():
            self.optimizer.step()
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
            if self.skipped_in_a_row >= MAX_SKIPPED:
                raise UserError(
                    f"{self.run.dir}: loss or gradient was not finite {MAX_SKIPPED} times in a row (iteration "
                    f"{iteration}); the weights are those before it; lower learning_rate, then --resume"
                )
        self.optimizer.zero_grad()
        return {"loss": loss, "grad_norm": norm, "learning_rate": lr}

    def _evaluate(self, step: int) -> dict[str, float]:
        """Held-out results under each eval sampler, as metrics; the first few problems are kept as they were solved."""
        metrics: dict[str, float] = {}
        kept: list[dict[str, Any]] = []
        if not self.source.eval_rows:
            return {}
        started = time.perf_counter()
        for name, sampler in self.eval_samplers.items():
            with self._sampling(self.model):
                found, records = held_out(
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
            kept += [{"sampler": name, **record} for record in records]
        if self.args.log_completions:
            self.run.write_rows(f"eval/step-{step}.jsonl", kept)
        metrics["time/eval"] = time.perf_counter() - started
        return metrics

    def _log(self, metrics: dict[str, Any], display: Display) -> None:
        """One line of metrics; the report follows whenever there is an evaluation to show."""
        self.run.log(metrics)
        display.update(metrics)
        if "time/eval" in metrics and self.rank == 0:
            try:
                write_report(self.run)
            except UserError as error:
                display.note(f"no report this time: {error}")  # never a reason to stop training

    def _save(self, step: int) -> None:
        save_checkpoint(
            self.run.dir,
            step,
            model=self.model,
            reference=self.reference,
            tokenizer=self.tokenizer,
            optimizer=self.optimizer,
            state={
                "skipped": self.skipped,
                "skipped_in_a_row": self.skipped_in_a_row,
                "failing": self.failing,
                "seconds": self.seconds,
                "flops": self.meter.flops,
                "unlogged": self.unlogged,
            },
            card=self._card(),
            keep=self.args.save_total_limit,
        )
        self.saved = step

    def _card(self) -> str:
        return model_card(self.run, to_dict(self.args), "train")

    def _restore(self, report: Callable[[str], None]) -> int:
        """Load the newest whole checkpoint; returns the number of iterations it has behind it (0: none yet)."""
        found = latest_checkpoint(self.run.dir, report) if self.rank == 0 else None
        checkpoint = distributed.gather(found)[0]  # its files are read through once, not by every process
        if checkpoint is None:
            self.run.truncate_metrics(-1)
            report(f"no checkpoint in {self.run.dir} yet; starting from the beginning")
            return self._build(None)
        load_weights(self.model, checkpoint / "model")
        load_weights(self.reference, checkpoint / "reference")
        self._build(checkpoint)
        state = load_state(checkpoint)
        self.skipped, self.skipped_in_a_row = state["skipped"], state["skipped_in_a_row"]
        self.failing = state.get("failing", {})
        self.seconds, self.meter.flops = state["seconds"], state["flops"]
        self.done = self.saved = state["step"]
        self.unlogged = state.get("unlogged")
        self.run.truncate_metrics(state["step"])
        report(f"resumed from {checkpoint}")
        return int(state["step"])
