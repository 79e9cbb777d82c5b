"""What an RL trainer is made of, from its configuration, in the order in which it is made: inputs, policies, and the
source of rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lfpo.base.environment import describe_environment
from lfpo.config.engine import ENGINES
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.length import UNSET
from lfpo.config.plugins import resolve
from lfpo.config.sampler import Sampler
from lfpo.config.train import LFPOConfig
from lfpo.config.training import TrainingConfig
from lfpo.core import collectives
from lfpo.core.batch import RolloutSource
from lfpo.core.engine import Engine
from lfpo.core.model import CURRENT, OLD
from lfpo.core.objective import Objective
from lfpo.core.rollouts import FreshRollouts
from lfpo.models import MaskedDiffusionLM
from lfpo.models.autocast import precision_of
from lfpo.models.loading import name_of
from lfpo.models.policies import load_policies
from lfpo.objectives.needs import check_rollouts, samplers
from lfpo.prompts.dataset import is_stream
from lfpo.prompts.sources import PromptSource, make_source
from lfpo.rewards import RewardFunction
from lfpo.rollout.episodes import Environment, Played
from lfpo.rollout.variants import check_context
from lfpo.train.adamw import build_adamw
from lfpo.train.average import Average
from lfpo.train.queue import Queued, RolloutQueue
from lfpo.train.rates import with_rate


def with_name(args: LFPOConfig, model: str | Path | MaskedDiffusionLM) -> LFPOConfig:
    """`args` with the name of the model that a trainer was given: for the run's files, plans, exports, Ray's workers.
    Raises UserError for the engine `ray` with a model object that was not loaded from a folder."""
    name = name_of(model)
    if name is None and args.engine.name == "ray":
        raise UserError(
            "engine ray: its workers load the model by name, and this one was not loaded from a folder; save it with "
            "save_model, and give the folder"
        )
    return args if name in (None, args.model) else replace(args, model=name)


def about(args: TrainingConfig, model: MaskedDiffusionLM) -> str:
    """A model's size, where it runs and in which precision, in a line."""
    return f"{sum(p.numel() for p in model.parameters()):,} parameters; {about_device(args, model)}"


def about_device(args: TrainingConfig, model: MaskedDiffusionLM) -> str:
    return f"{describe_environment()}, {precision_of(args, model.device.type, model.backbone.config.hidden_size)}"


@dataclass(frozen=True)
class Inputs:
    """What a run trains and measures on, and how its rollouts are sampled.

    source: prompts and what scores completions. environment: plays rollouts in turns, in place of reward functions; or
    None. sampler: of the rollouts. eval_samplers: name -> sampler. All samplers have their lengths filled in.
    """

    source: PromptSource
    environment: Environment | None
    sampler: Sampler
    eval_samplers: dict[str, Sampler]


@dataclass(frozen=True)
class Policies:
    """The models of a run. by_role: theta, theta_old and, where the objective needs it, the base policy, by their names
    in lfpo.core.model. optimizer: of theta. average: of theta over the optimiser steps; None where none is kept.
    learning_rate: of the run, with about_rate, a line about it."""

    by_role: dict[str, MaskedDiffusionLM]
    tokenizer: Any
    optimizer: torch.optim.Optimizer
    average: Average | None
    learning_rate: float
    about_rate: str


def make_inputs(
    args: LFPOConfig,
    objective: Objective,
    block_length: int | None,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None,
    train_dataset: Sequence[Json] | None,
    eval_dataset: Sequence[Json] | None,
) -> Inputs:
    """The inputs that the configuration and the trainer's arguments give. block_length: the model's. Raises UserError
    for what does not go together, or that the objective cannot learn from."""
    environment = None
    if args.environment is not None:
        make = resolve(args.environment, {}, kind="environment")
        environment = Environment(make, args.max_turns, args.reward_timeout)
    source = training_source(args, reward_funcs, train_dataset, eval_dataset)
    return Inputs(source, environment, *samplers(args, source.gen_length, objective, block_length))


def make_policies(
    args: LFPOConfig, model: str | Path | MaskedDiffusionLM | None, tokenizer: Any, *, needs_base: bool
) -> Policies:
    """The policies on their devices, and the optimiser of theta. model, tokenizer: as the trainer was given them."""
    policies, tokenizer = load_policies(args, model, tokenizer, needs_base=needs_base)
    theta = policies[CURRENT]
    average = Average(theta.own_parameters(), args.average_decay) if args.average_decay else None
    settings, about_rate = with_rate(args, "train", theta)
    optimizer = build_adamw(theta, settings)
    return Policies(policies, tokenizer, optimizer, average, settings.learning_rate, about_rate)


def make_rollouts(
    args: LFPOConfig, objective: Objective, inputs: Inputs, policies: Policies, engine: Engine, state: Json
) -> tuple[RolloutSource, RolloutQueue | None]:
    """What gives an iteration its scored rollouts, and the queue of those that are sampled ahead, if any. state: of the
    run. Raises UserError where the objective needs what the engine does not give, or a length does not fit."""
    source, reference = inputs.source, policies.by_role[OLD]
    check_rollouts(objective, inputs.sampler, engine.gives, trained_block=reference.block_length)
    check_context(inputs.sampler, reference)
    for name, sampler in inputs.eval_samplers.items():
        check_context(sampler, reference, f"eval_samplers.{name}")
    sampled = FreshRollouts(
        args,
        source.train_row,
        source.scorer,
        reference,
        policies.tokenizer,
        engine,
        inputs.sampler,
        objective.variant(inputs.sampler),
        state,
    )
    queue = RolloutQueue(engine, args, reference.pad_id) if args.engine.max_staleness else None
    rollouts: RolloutSource = sampled if queue is None else Queued(queue, sampled)
    if inputs.environment is not None:
        rollouts = Played(inputs.environment, sampled)
    return objective.rewarded(rollouts, policies.tokenizer, source.score, args.num_generations), queue


def training_source(
    args: LFPOConfig,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None,
    train_dataset: Sequence[Json] | None,
    eval_dataset: Sequence[Json] | None,
) -> PromptSource:
    """The prompts and reward functions that the configuration and the trainer's arguments give. Raises UserError where
    these do not go together."""
    return make_source(
        args,
        seed=args.seed,
        n_eval=args.eval_size if args.evaluates_after(0) else 0,
        reward_funcs=reward_funcs,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        most=rows_of_stream(args, train_dataset),
        environment=args.environment,
    )


def rows_of_stream(args: LFPOConfig, dataset: object) -> int | None:
    """How many rows a run takes of a data set without a length, which may be endless; None of one with a length, and
    where epochs of it would count, which `read_rows` refuses."""
    if not is_stream(dataset) or (args.max_steps == UNSET and args.num_train_epochs):
        return None
    return args.length(0).iterations * args.prompts_per_iteration


def check_ranks(args: TrainingConfig, command: str, shared: str = "") -> None:
    """Raise UserError where the number of ranks does not fit the configuration.

    command: "train", "sft" or "dpo". shared: the key that says how many of something ranks share, if each needs one.
    """
    if shared and collectives.world() > getattr(args, shared):
        raise UserError(
            f"{collectives.world()} ranks for {getattr(args, shared)} {shared}: each rank needs at least one; start "
            f"fewer ranks or raise {shared}"
        )
    if args.fsdp and not torch.distributed.is_initialized():
        raise UserError(f"fsdp needs torchrun: torchrun --nproc_per_node N -m lfpo {command} ... --fsdp true")
    if args.fsdp_size and collectives.world() % args.fsdp_size:
        raise UserError(
            f"fsdp_size {args.fsdp_size} does not divide the number of ranks, {collectives.world()}; give the number "
            "of GPUs of one machine, or leave it out"
        )


def make_engine(args: LFPOConfig) -> Engine:
    """The engine that `args.engine` names. A collective. Raises UserError for what it cannot run with."""
    engine: Engine = resolve(args.engine.name, ENGINES, kind="engine")(args)
    return engine
