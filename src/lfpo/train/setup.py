"""What a trainer is made of, from its configuration: policies, prompts, rewards, samplers, engine and queue."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lfpo.base.environment import describe_environment
from lfpo.config.engine import ENGINES
from lfpo.config.errors import UserError
from lfpo.config.json import Json
from lfpo.config.length import UNSET
from lfpo.config.plugins import resolve
from lfpo.config.train import LFPOConfig
from lfpo.config.training import TrainingConfig
from lfpo.core import collectives
from lfpo.core.engine import Engine
from lfpo.models import MaskedDiffusionLM
from lfpo.models.autocast import described
from lfpo.models.loading import name_of
from lfpo.prompts.dataset import is_stream
from lfpo.prompts.sources import PromptSource, make_source
from lfpo.rewards import RewardFunction


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
    return f"{describe_environment()}, {described(args, model.device.type, model.backbone.config.hidden_size)}"


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
