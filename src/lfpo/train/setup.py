"""What a trainer is made of, from its configuration: policies, prompts, rewards, samplers, engine and queue."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lfpo.base import distributed
from lfpo.base.environment import describe_environment
from lfpo.config.engine import ENGINES
from lfpo.config.errors import UserError
from lfpo.config.length import UNSET
from lfpo.config.plugins import resolve
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.config.training import TrainingConfig
from lfpo.core import collectives
from lfpo.core.engine import Engine
from lfpo.core.objective import Objective
from lfpo.core.roles import BASE, CURRENT, OLD
from lfpo.core.rollouts import LocalEngine
from lfpo.core.trajectory import Trajectory
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.models.autocast import autocasts, described
from lfpo.models.four_bit import quantize
from lfpo.models.fsdp import frozen_copy as split_frozen_copy
from lfpo.models.fsdp import gathered, gathered_by_layer, shard
from lfpo.models.loading import name_of
from lfpo.models.lora import attach, inject
from lfpo.models.placement import frozen_copy_on_cpu, sampling
from lfpo.objectives.needs import check_old_policy, check_rollouts, kept_steps
from lfpo.prompts.dataset import is_stream, read_rows
from lfpo.prompts.sources import PromptSource, in_epochs, task_source
from lfpo.prompts.tasks import get_task
from lfpo.rewards import RewardFunction, in_child
from lfpo.rollout.sampling import run_unit
from lfpo.train.inputs import check_source, reward_function


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


def load_policies(
    args: TrainingConfig, model: Any, tokenizer: Any, *, needs_base: bool, needs_old: bool = True
) -> tuple[dict[str, MaskedDiffusionLM], Any]:
    """The policies by name (lfpo.core.roles), on this rank's device, and the tokenizer.

    model: see LFPOTrainer; a loaded model becomes the current policy itself. needs_base, needs_old: whether the base
    policy and theta_old are kept.
    Raises UserError for a loaded model without its tokenizer, and for settings that its attention does not go with.
    """
    device, mesh = collectives.device(), distributed.mesh(args.fsdp_size) if args.fsdp else None
    autocast = args.bf16 and device.type == "cuda"
    if not isinstance(model, MaskedDiffusionLM):
        name = model or args.model or ""
        dtype = getattr(torch, args.dtype)
        four_bit = (torch.bfloat16 if autocast else dtype) if args.load_in_4bit else None
        model = load_model(name, dtype=dtype, device=device, mesh=mesh, cast=autocast, four_bit=four_bit)
        tokenizer = tokenizer or load_tokenizer(name)
    elif tokenizer is None:
        raise UserError("a loaded model was given without its tokenizer; pass tokenizer=load_tokenizer(...)")
    elif mesh is not None:
        shard(model.to(device), mesh, cast=autocast)
    elif args.load_in_4bit:
        quantize(model.backbone, device, torch.bfloat16 if autocast else model.dtype)
    # The same precision in updates, rollouts and evaluation, so that they run the same policy.
    model.autocast = autocasts(args, device.type, model.backbone.config.hidden_size)
    model.head_precision = args.head_precision
    if mesh is None:
        model.to(device)
    if args.lora is not None:
        old = attach(model, args.lora, seed=args.seed)
        for unsplit in model.unsplit:
            inject(unsplit, args.lora)
        others = ({OLD: old} if needs_old else {}) | ({BASE: model.with_adapter(BASE)} if needs_base else {})
    else:
        frozen_copy: Callable[[MaskedDiffusionLM], MaskedDiffusionLM] = MaskedDiffusionLM.frozen_copy
        if mesh is not None or args.offload_reference:
            frozen_copy = frozen_copy_on_cpu if mesh is None else split_frozen_copy
        others = {name: frozen_copy(model) for name, needed in ((OLD, needs_old), (BASE, needs_base)) if needed}
    if args.gradient_checkpointing:
        model.checkpoint_layers()
    return {CURRENT: model} | others, tokenizer


def about(args: TrainingConfig, model: MaskedDiffusionLM) -> str:
    """A model's size, where it runs and in which precision, in a line."""
    return f"{sum(p.numel() for p in model.parameters()):,} parameters; {about_device(args, model)}"


def about_device(args: TrainingConfig, model: MaskedDiffusionLM) -> str:
    return f"{describe_environment()}, {described(args, model.device.type, model.backbone.config.hidden_size)}"


def make_source(
    args: LFPOConfig,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None,
    train_dataset: Sequence[dict[str, Any]] | None,
    eval_dataset: Sequence[dict[str, Any]] | None,
) -> PromptSource:
    """The prompts and reward functions that the configuration and the trainer's arguments give. Raises UserError where
    these do not go together."""
    functions, n_eval = _functions(args, reward_funcs), args.eval_size if args.evaluates_after(0) else 0
    if functions and args.environment is not None:
        raise UserError("an environment gives the rewards itself; leave out reward_funcs")
    check_source(args, functions, train_dataset)
    if args.task is not None:
        if eval_dataset is not None:
            raise UserError("eval_dataset goes with train_dataset; a task brings its own test split")
        source = task_source(get_task(args.task), seed=args.seed, n_eval=n_eval)
        if args.environment is not None:
            source = replace(source, reward_functions=[], correct_all=None)
        elif functions:
            source = replace(source, reward_functions=functions)
    else:
        found = {"train": read_rows(args, "train", train_dataset, rows_of_stream(args, train_dataset))}
        if not found["train"]:
            raise UserError("train_dataset: no rows")
        found["eval"] = read_rows(args, "eval", eval_dataset, n_eval) if n_eval else []
        rows = [record.values for record in found["train"]]
        source = PromptSource(
            name="dataset",
            # A stream keeps its order, so that a longer run, which reads more of it, begins with the same rows.
            train_row=(lambda i: rows[i % len(rows)]) if is_stream(train_dataset) else in_epochs(rows, args.seed),
            eval_rows=[record.values for record in found["eval"][:n_eval]],
            place=lambda split, i: found[split][i].where,
            reward_functions=functions,
            rows=rows,
        )
    count = len(source.reward_functions)
    weights = args.reward_weights or [1.0] * count
    if len(weights) != count:
        raise UserError(f"reward_weights: {len(weights)} weights for {count} functions")
    return replace(source, weights=weights, timeout=args.reward_timeout)


def rows_of_stream(args: LFPOConfig, dataset: Any) -> int | None:
    """How many rows a run takes of a data set without a length, which may be endless; None of one with a length, and
    where epochs of it would count, which `read_rows` refuses."""
    if not is_stream(dataset) or (args.max_steps == UNSET and args.num_train_epochs):
        return None
    return args.length(0).iterations * args.prompts_per_iteration


def _functions(
    args: LFPOConfig, reward_funcs: RewardFunction | Sequence[RewardFunction] | None
) -> list[RewardFunction]:
    """The reward functions of the arguments, or of the configuration; in child processes if reward_memory is set."""
    given: list[RewardFunction | str] = [*args.reward_funcs]
    if reward_funcs is not None:
        given = [*reward_funcs] if isinstance(reward_funcs, list | tuple) else [reward_funcs]  # type: ignore[list-item]
    if args.reward_memory:
        if not given:
            raise UserError("reward_memory limits the functions of reward_funcs, and none is given; leave it out")
        return [in_child(f, memory=args.reward_memory, seconds=args.reward_timeout) for f in given]
    return [reward_function(f) for f in given]


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


def samplers(
    args: LFPOConfig, gen_length: int, objective: Objective, block_length: int | None
) -> tuple[SamplerConfig, dict[str, SamplerConfig]]:
    """The rollouts' sampler and the evaluations' by name, with their lengths filled in.

    gen_length: the prompt source's default. block_length: the model's. Raises UserError where a length does not fit, or
    the objective cannot learn from such rollouts or from so few of them a prompt.
    """
    sampler = args.sampler.fitted("sampler", gen_length, block_length)
    length = sampler.gen_length or 0
    evaluated = {name: s.fitted("sampler", length, block_length) for name, s in args.eval_samplers.items()}
    check_rollouts(objective, sampler, trained_block=block_length)
    check_old_policy(objective, args.old_policy)
    if args.environment is not None and ("predictions" in objective.needs or objective.whole_groups):
        what = "rollouts of one row each" if objective.whole_groups else "rewards of predictions within a rollout"
        raise UserError(f"objective {type(objective).__name__} needs {what}, which an environment does not give")
    group_R = torch.arange(args.prompts_per_iteration).repeat_interleave(args.num_generations)
    reward_R = torch.zeros(len(group_R), dtype=torch.float64)
    steps = kept_steps(objective, sampler)
    objective.signal(reward_R[:, None].expand(-1, len(steps)) if steps else reward_R, group_R)
    return sampler, evaluated


def make_engine(args: LFPOConfig) -> Engine:
    """The engine that `args.engine` names. A collective. Raises UserError for what it cannot run with."""
    engine: Engine = resolve(args.engine.name, ENGINES, kind="engine")(args)
    return engine


def local_engine(args: LFPOConfig, run: Callable[..., Trajectory] | None = None) -> LocalEngine:
    """Rollouts in the trainer's own processes. run: samples a unit of work (see LocalEngine)."""

    def prepared(policy: MaskedDiffusionLM) -> AbstractContextManager[MaskedDiffusionLM]:
        trained = any(p.requires_grad for p in policy.parameters())  # theta, which is evaluated, stays on the device
        return ready_to_sample(policy, args, move=args.offload_reference and not trained)

    device = collectives.device()
    changed = args.fsdp or args.offload_reference or args.merges_lora(device.type) or args.bf16
    return LocalEngine(
        prepared if changed else contextlib.nullcontext,
        run or run_unit,
        rollout_tokens=args.rollout_tokens,
        compiled=args.rollout_compile,
        rows_per_unit=args.engine.prompts_per_unit * args.num_generations,
    )


@contextlib.contextmanager
def ready_to_sample(policy: MaskedDiffusionLM, args: Any, *, move: bool = False) -> Iterator[MaskedDiffusionLM]:
    """A policy made ready for many forwards without gradients. move: its layers are stored in CPU memory."""
    merge = args.merges_lora(policy.device.type)
    if args.fsdp:
        by_layer = args.rollout_gather == "layer"
        with gathered_by_layer(policy) if by_layer else gathered(policy, cast=policy.autocast, merge=merge) as ready:
            yield ready
        return
    # A compiled forward casts as it goes: it must find its weights where they were when it was compiled.
    cast = policy.autocast and not args.rollout_compile
    with sampling(policy, cast=cast, move_to_device=move, merge=merge):
        yield policy
