"""The RL trainer: Algorithm 1 with its parts made from a configuration, as a run (lfpo.train.run) runs it."""

import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lfpo.base import distributed
from lfpo.base.environment import use_threads
from lfpo.config.build import refusal
from lfpo.config.errors import UserError
from lfpo.config.export import PushConfig
from lfpo.config.files import user_path
from lfpo.config.json import Json
from lfpo.config.length import in_words
from lfpo.config.other_names import ARGUMENTS, METHODS
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives
from lfpo.core.algorithm import Algorithm
from lfpo.core.batch import Batch
from lfpo.core.learner import Learner
from lfpo.core.model import CURRENT, OLD
from lfpo.core.structure import PolicyForward
from lfpo.models import MaskedDiffusionLM
from lfpo.models.loading import trained_block_length
from lfpo.models.lora import settings_of
from lfpo.objectives import make_objective
from lfpo.plan.flops import pass_flops, rollout_flops
from lfpo.prompts.sources import fingerprints
from lfpo.rewards import RewardFunction
from lfpo.runs.context import Context
from lfpo.runs.directory import Run
from lfpo.runs.display import Display
from lfpo.train.callbacks import Callbacks
from lfpo.train.export import make_repository, run_push
from lfpo.train.held_out import held_out
from lfpo.train.preflight import preflight
from lfpo.train.records import rollout_records
from lfpo.train.run import run_trainer
from lfpo.train.setup import check_ranks, make_engine, make_inputs, make_policies, make_rollouts, with_name
from lfpo.train.trainer import Trainer


class LFPOTrainer(Trainer):
    """Reinforcement learning of a masked diffusion language model, called the way TRL's trainers are.

    model: a checkpoint folder, hub id, "embedded", or a loaded MaskedDiffusionLM (then give its tokenizer too).
    reward_funcs: functions f(prompts, completions, **columns) -> list of numbers or None; None uses args.reward_funcs
        or the task's own.
    args: LFPOConfig. train_dataset, eval_dataset: rows (mappings) with a "prompt"; a list or a datasets.Dataset.
        train_dataset may also be a data set's name, as args.dataset_name. None uses what args names.
    callbacks: objects or classes with methods of transformers' TrainerCallback (see lfpo.train.callbacks.Callbacks).
    peft_config: a peft LoraConfig; the same as args.lora.
    Raises UserError for arguments that do not fit together.
    """

    kind = "train"
    reference: MaskedDiffusionLM

    def __init__(
        self,
        model: str | Path | MaskedDiffusionLM | None = None,
        reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
        args: LFPOConfig | None = None,
        train_dataset: str | Sequence[Json] | None = None,
        eval_dataset: Sequence[Json] | None = None,
        tokenizer: Any = None,
        peft_config: object = None,
        callbacks: object = (),
        **others: object,
    ):
        for name in others:
            arguments = list(inspect.signature(LFPOTrainer).parameters)[:-1]
            raise UserError(f"LFPOTrainer: {refusal(name, ARGUMENTS | LFPOConfig.REFUSED, arguments)}")
        args = args or LFPOConfig(output_dir="runs/lfpo")
        if peft_config is not None:
            args = replace(args, lora=settings_of(peft_config))
        if model is not None:
            args = with_name(args, model)
        if isinstance(train_dataset, str):
            args, train_dataset = replace(args, dataset_name=train_dataset), None
        self.args, self.stop_on = args, {"no_reward", *args.stop_on}
        # The run directory, to read from; what is written goes through the run's context. From now on absolute: a
        # reward function may change the working directory.
        self.run = Run(user_path(args.output_dir).absolute())
        self.callbacks = callbacks if isinstance(callbacks, list | tuple) else [] if callbacks is None else [callbacks]
        distributed.start()
        check_ranks(args, "train", "prompts_per_iteration")
        use_threads(args.threads)
        self.user_args, self.objective = args, make_objective(args.objective)
        block_length = trained_block_length(model or args.model)
        inputs = make_inputs(args, self.objective, block_length, reward_funcs, train_dataset, eval_dataset)
        # Before the model is loaded, which may take minutes: epochs of prompts without end are refused here.
        self.args = args = replace(args, max_steps=args.length(len(inputs.source.rows)).iterations)
        policies = make_policies(args, model, tokenizer, needs_base=self.objective.needs_base)
        # Every check that needs the model comes before the engine and the reward workers, which start processes.
        source, self.about = preflight(args, inputs, policies, self.run.dir)
        self.about += f"\n{'rate':<8} {policies.about_rate}"
        self.length = self.user_args.length(len(source.rows))  # again, now without prompts that are left out
        self.args = args = replace(args, max_steps=self.length.iterations, learning_rate=policies.learning_rate)
        self.about += f"\n{'length':<8} {in_words(self.length, self.user_args.num_train_epochs)}"
        self.total_steps = self.length.iterations
        self.row_fingerprints = fingerprints(source, args.prompts_per_iteration)
        self.data = self.row_fingerprints["training"] if source.rows and not source.stream else ""
        self.closing = contextlib.ExitStack()  # what is given back when training ends
        self.engine = make_engine(args)
        self.closing.callback(self.engine.close)
        if args.engine.reward_workers:
            from lfpo.ray.rewards import by_tasks

            source = replace(source, reward_functions=by_tasks(source.reward_functions, args.engine, self.closing))
        inputs = replace(inputs, source=source)
        # Training time and FLOPs without evaluation; skipped updates; reward function -> batches in a row it failed.
        self.state: Json = {"row_offset": 0, "skipped": 0, "skipped_in_a_row": 0, "failing": {}}
        self.state |= {"seconds": 0.0, "flops": 0.0}
        rollouts, self.queue = make_rollouts(args, self.objective, inputs, policies, self.engine, self.state)
        self.source, self.environment = source, inputs.environment
        self.sampler, self.eval_samplers = inputs.sampler, inputs.eval_samplers
        self.policies, self.tokenizer = policies.by_role, policies.tokenizer
        self.model, self.reference = self.policies[CURRENT], self.policies[OLD]  # theta, theta_old
        self.optimizer, self.average = policies.optimizer, policies.average
        self.exported = False  # whether the model's weights are the average
        parts = {"average": self.average, "queue": self.queue}
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.run = replace(self.run, silent=collectives.rank() != 0)
        after_step = None if self.average is None else self.average.update
        self.learner = Learner(args, self.objective, self.policies, self.optimizer, self.state, after_step)
        size = args.prompts_per_iteration, args.num_generations
        self.algorithm = Algorithm(rollouts, *size, self.learner, self.state)
        # Last: callbacks may read any attribute of the trainer.
        self.events = Callbacks(self)
        self.events.call("on_init_end", 0)

    def train(
        self, resume_from_checkpoint: bool | None = None, *, resume: bool = False, display: Display | None = None
    ) -> Path:
        """Run Algorithm 1 and return the folder of the trained model. `resume` (or TRL's name for it) continues
        output_dir's run from its newest checkpoint; another value, such as a folder, is a UserError. SIGTERM or SIGINT
        leaves a checkpoint of all finished iterations and raises Stopped, a KeyboardInterrupt."""
        args, resume = self.args, resume if resume_from_checkpoint is None else resume_from_checkpoint
        # Now, not when hours of training are over: a wrong name or token is told at once.
        if args.push_to_hub and collectives.rank() == 0:
            make_repository(str(args.hub_model_id), private=args.hub_private_repo)
        self.exported = False
        with self.closing:
            folder = run_trainer(self, resume=resume, display=display)
        if args.push_to_hub:
            try:
                self.events.call("on_push_begin", self.events.step)
                if collectives.rank() == 0:
                    run_push(PushConfig(str(self.run.dir), str(args.hub_model_id), private=args.hub_private_repo))
            except (UserError, OSError) as error:
                text, again = str(error), f"lfpo push {self.run.dir} {args.hub_model_id}"
                raise UserError(f"{text}; the model is trained and saved in {folder}: `{again}` uploads it") from error
        return folder

    if not TYPE_CHECKING:  # a type checker would believe that every attribute exists

        def __getattr__(self, name: str) -> object:
            hint = f" {METHODS[name]}" if name in METHODS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def add_callback(self, callback: object) -> None:
        """Call this callback too, as with transformers' trainer."""
        self.events.add(callback)

    def remove_callback(self, callback: object) -> None:
        """Call this callback, or all of this class, no more."""
        self.events.remove(callback)

    def run_iteration(self, step: int, context: Context | None = None) -> Json:
        """One iteration of Algorithm 1, then its accounts: FLOPs, records of rollouts, the queue. context: of the run,
        if any."""
        context, passes = context or Context(), list[PolicyForward]()
        context.observer.passes = passes
        batch, signal_R, metrics = self.algorithm.iterate(step, context.observer)
        # This rank's own: what its rollouts ran, by their record, and the passes that the update has just noted.
        flops = rollout_flops(self.policies[OLD], batch.trajectory)
        flops += sum(pass_flops(self.policies[ran.policy], ran) for ran in passes)
        self.state["flops"] += collectives.sum_number(flops)
        # A rollout R in turns has several rows B, each recorded with the signal of its rollout.
        self.log_rollouts(step, batch, signal_R[batch.rollout_B], context)
        if self.queue is not None:
            self.queue.forget(step)  # only now: a checkpoint before it still needs the batch
        return {"step": step + 1, **metrics, "flops": self.state["flops"]}

    def log_rollouts(self, iteration: int, batch: Batch, signal_B: torch.Tensor, context: Context) -> None:
        """Collect the records of all ranks on rank 0 and write them."""
        if self.args.log_completions:
            records = distributed.gather_to_first(rollout_records(batch, signal_B, self.tokenizer))
            rows = [row for part in records for row in part]
            collectives.raise_on_all(lambda: context.folder.write_rows(f"rollouts/step-{iteration + 1}.jsonl", rows))

    def evaluates_after(self, step: int) -> bool:
        return self.args.evaluates_after(step)

    def evaluate(self, step: int = 0, context: Context | None = None) -> dict[str, float]:
        """The results of the model as it is now on the held-out rows, as metrics eval/SAMPLER/NAME (see
        lfpo.train.held_out). Needs no run; with the context of one, completions are written there."""
        context = context or Context()
        self.engine.forwarded = context.observer.forward
        with self.average.in_place() if self.average is not None and not self.exported else contextlib.nullcontext():
            return held_out(self, step, context)

    def export(self) -> MaskedDiffusionLM:
        """The trained model; from now on its weights are the average, if one is kept."""
        if self.average is not None and not self.exported:
            self.average.swap()
        self.exported = True
        return self.model
