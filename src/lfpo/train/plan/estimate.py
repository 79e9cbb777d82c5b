"""Memory of one GPU in each phase of a run, and FLOPs of an iteration, from a recipe and a model's config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from lfpo.base.errors import UserError
from lfpo.models.four_bit import BYTES_PER_WEIGHT as FOUR_BIT
from lfpo.models.four_bit import NOT_IN_4BIT
from lfpo.models.head import precision_of
from lfpo.models.kv_cache import columns_for
from lfpo.models.loading import family_of
from lfpo.models.structure import FULL, Structure
from lfpo.objectives import make_objective
from lfpo.objectives.needs import check_rollouts
from lfpo.objectives.ops.fused import CHUNK_ELEMENTS as LOSS_ELEMENTS
from lfpo.prompts.tasks import get_task
from lfpo.rollout.draw import CHUNK_ELEMENTS as DRAW_ELEMENTS
from lfpo.rollout.draw import LOGIT_ELEMENTS
from lfpo.rollout.packing import PIECE_TOKENS, rows_in_flight
from lfpo.train.config import LFPOConfig
from lfpo.train.flops import head_dim
from lfpo.train.optim import moment_bytes
from lfpo.train.plan.activations import Activations, Kind, measure
from lfpo.train.plan.shapes import Sizes, adapter_size, model_shape
from lfpo.train.plan.work import Work, count, forward_flops, sampling_work

Phases = tuple[float, float, float]  # start, rollout, update
PHASES = ("start", "rollout", "update")
CONTEXT = {"cuda": 2**30, "cpu": 0}  # bytes that CUDA itself takes, approximately


@dataclass(frozen=True)
class Estimate:
    """parts: name -> bytes of one GPU in each of PHASES. host: name -> bytes of CPU memory of each rank.
    rows: views in one update pass, each of `length` tokens. trained: number of trained weights.
    transfers: how often in an iteration all layers of an offloaded reference are copied to or from the GPU.
    doubled: whether a view runs as [noised; clean], twice its tokens. completion: tokens of a completion.
    rollout_flops, update_flops: of one iteration on all GPUs, the recomputation of gradient checkpointing included.
    evaluation_flops: of all evaluations of the run."""

    parts: dict[str, Phases]
    rows: int
    length: int
    sizes: Sizes
    trained: int
    host: dict[str, float]
    transfers: int
    work: Work
    doubled: bool
    completion: int
    rollout_flops: float
    update_flops: float
    evaluation_flops: float

    @property
    def totals(self) -> Phases:
        start, rollout, update = (sum(column) for column in zip(*self.parts.values(), strict=True))
        return start, rollout, update

    @property
    def peak(self) -> float:
        return max(self.totals)


def gen_length(args: LFPOConfig) -> int:
    """The recipe's completion length: the sampler's, else the task's own."""
    if args.sampler.gen_length is not None:
        return args.sampler.gen_length
    return get_task(args.task).gen_length if args.task is not None else 128


class _Setup:
    """A recipe on a model and a machine.

    adapter: weights of one LoRA adapter, 0 without LoRA. per_weight: bytes. step_views: views of one optimiser step on
    one rank. rows: views of one update pass. view_tokens: tokens of a view's forward, with keys that each of them
    attends to, on average: view_keys.
    """

    def __init__(self, args: LFPOConfig, config: dict[str, Any], gpus: int, prompt_length: int, device: str):
        self.args, self.config, self.gpus, self.device = args, config, gpus, device
        self.sizes, self.hf, self.shift = model_shape(config)
        if args.load_in_4bit and self.sizes.experts:
            raise UserError(NOT_IN_4BIT)
        self.objective = make_objective(args.objective)
        self.trained_block = family_of(config, "config.json").block_length(config)
        try:
            self.sampler = args.sampler.for_length(gen_length(args), self.trained_block)
        except ValueError as error:  # settings that do not go with this model
            raise UserError(f"sampler: {error}") from error
        check_rollouts(self.objective, self.sampler, trained_block=self.trained_block)
        assert self.sampler.gen_length and self.sampler.block_length
        self.block_length = self.sampler.block_length
        self.length = prompt_length + self.sampler.gen_length
        blocks: dict[str, Any] = {"trained_block": self.trained_block, "group": args.num_generations}
        self.work = count(self.objective, self.sampler, prompt_length, self.shift, **blocks)
        structure = FULL if self.trained_block is None else Structure(self.trained_block, doubled=True)
        length = torch.tensor([self.length])
        self.view_tokens = int(structure.tokens(length))
        self.view_keys = float(structure.pairs(length)) / self.view_tokens
        # Keys that a token attends to in a rollout, on average.
        self.sampled_keys = self.length if self.trained_block is None else prompt_length + self.sampler.gen_length / 2
        self.dtype: torch.dtype = getattr(torch, args.dtype)
        self.per_weight = self.dtype.itemsize
        self.autocast = args.bf16 and device == "cuda"
        self.products = precision_of(args.head_precision, torch.device(device), self.dtype)
        self.head = self.hf.vocab_size * self.hf.hidden_size  # weights of the head, and of the embeddings
        self.adapter = 0 if args.lora is None else adapter_size(config, args.lora)
        self.rollouts = args.prompts_per_iteration * args.num_generations
        self.step_views = self.rollouts / gpus / args.optimizer_steps_per_iteration * self.work.views
        # As many as update_tokens allows, but no more than there are, and whole units.
        self.rows = max(self.work.unit, min(args.update_tokens // self.view_tokens, math.ceil(self.step_views)), 1)

    def activations(self, kind: Kind, rows: int, length: int) -> Activations:
        layers, lora = self.hf.num_hidden_layers, self.args.lora
        shape: dict[str, Any] = {"layers": layers, "rows": rows, "length": length}
        return measure(kind, self.config, **shape, dtype=self.dtype, lora=lora, autocast=self.autocast)


def estimate(
    args: LFPOConfig, config: dict[str, Any], *, gpus: int = 1, prompt_length: int = 256, device: str = "cuda"
) -> Estimate:
    """The estimate of a recipe for a model with this config.json.

    gpus: ranks, one for each GPU. prompt_length: tokens. device: "cuda" or "cpu", whose chunk sizes differ.
    """
    setup = _Setup(args, config, gpus, prompt_length, device)
    held, host = _model_states(setup)
    parts = {
        **held,
        "gathered weights": _gathered(setup),
        **_rollout_parts(setup),
        **_update_parts(setup),
        "CUDA context": (CONTEXT[device],) * 3,
    }
    rollout_flops, update_flops = _flops(setup)
    return Estimate(
        parts={name: values for name, values in parts.items() if any(values)},
        rows=setup.rows,
        length=setup.length,
        sizes=setup.sizes,
        trained=setup.adapter if args.lora is not None else setup.sizes.total,
        host=host,
        transfers=_transfers(setup),
        work=setup.work,
        doubled=setup.view_tokens > setup.length,
        completion=setup.length - prompt_length,
        rollout_flops=rollout_flops,
        update_flops=update_flops,
        evaluation_flops=_evaluation_flops(setup, prompt_length),
    )


def _model_states(setup: _Setup) -> tuple[dict[str, Phases], dict[str, float]]:
    """What a run holds between passes (weights, reference, base policy, moments, gradients): name -> bytes of one GPU
    in each phase, and name -> bytes of CPU memory of each rank."""
    args, sizes, adapter = setup.args, setup.sizes, setup.adapter
    per_weight, autocast = setup.per_weight, setup.autocast
    share = 1 / (args.fsdp_size or setup.gpus) if args.fsdp else 1.0  # of all weights, that one rank holds
    needs_base = setup.objective.needs_base
    outside, layers = per_weight * sizes.outside, per_weight * sizes.layers
    saved_by_4bit = (per_weight - FOUR_BIT) * sizes.matrices if args.load_in_4bit else 0
    held = share * (outside + layers) - saved_by_4bit  # from the start: each rank reads its own rows
    offloaded = layers if args.offload_reference else 0
    frozen: Phases = (0, 0, 0)  # a policy that is not trained; with LoRA it is an adapter
    if args.lora is None:
        frozen = (outside,) * 3 if offloaded else (held,) * 3

    # The layers' matrices in bfloat16 during rollouts (lfpo.models.placement.sampling); offloaded ones are cast when
    # they are copied to the GPU. Merged adapters take a copy of every matrix that has one: of the experts' by choice.
    # FSDP gathers all of them.
    copies = 0.0
    if args.merges_lora(setup.device) and not args.fsdp:
        apart = 0 if args.lora and args.lora.experts else sizes.experts  # matrices without adapters
        copies = (2 if autocast else per_weight) * (sizes.matrices - apart)
        copies += 2 * apart * (autocast and per_weight > 2)
        copies += 8 * sizes.matrix * (sizes.experts > apart)  # the sum of one stacked matrix, in float32
    elif autocast and not args.fsdp and not args.rollout_compile:
        copies = 2 * sizes.matrices * (per_weight > 2 and not args.load_in_4bit) + 2 * 2 * adapter
    on_gpu = offloaded - (per_weight * sizes.matrices if copies else 0) if offloaded else 0
    dequantised = sizes.matrix * (2 if autocast else per_weight) if args.load_in_4bit else 0

    trained = adapter or share * sizes.total
    moments = moment_bytes(args.optim) * trained
    paged = args.optim.startswith("paged")
    # Of paged moments only those of the tensor that is being updated have to be on the GPU.
    largest = moment_bytes(args.optim) * (sizes.matrix if args.lora else max(sizes.head, sizes.rest))
    parts: dict[str, Phases] = {
        "weights": (held + 4 * adapter,) * 3,
        "reference": (4 * adapter,) * 3 if args.lora else frozen,
        "base policy": frozen if needs_base else (0, 0, 0),
        "average": ((4 if args.lora else per_weight) * trained * bool(args.average_decay),) * 3,
        "copies for sampling": (0, copies, 0),
        "reference's layers on the GPU": (0, on_gpu, per_weight * sizes.layer if offloaded else 0),
        "one dequantised matrix": (0, dequantised, dequantised),
        "optimiser": (0, 0, min(largest, moments)) if paged else (0, moments, moments),
        "gradients": (0, 0, 4 * trained),
    }
    host = {
        "reference": offloaded,
        "base policy": offloaded if needs_base else 0,
        "optimiser": moments if paged else 0,
    }
    if args.old_policy == "sampler" and args.engine.max_staleness:
        one = 4 * adapter or share * per_weight * sizes.total
        host["earlier versions of the reference"] = (args.engine.max_staleness + 1) * one
    return parts, {name: size for name, size in host.items() if size}


def _gathered(setup: _Setup) -> Phases:
    """Weights gathered by FSDP, as in lfpo.models.fsdp. In rollouts all of them, the layers' matrices in bfloat16 under
    autocast. In an update the heads of a pass and two layers, in bfloat16 under autocast (float32 with experts), and
    either the copy that is made of one, or two gradients: a layer's, and in float32 the one before it on its way."""
    if not setup.args.fsdp:
        return (0, 0, 0)
    sizes, per_weight, lora = setup.sizes, setup.per_weight, setup.args.lora is not None
    cast = setup.autocast
    whole = (2 if cast else per_weight) * sizes.matrices + per_weight * (sizes.total - sizes.matrices)
    merged = setup.args.merges_lora(setup.device)  # a sum is made in float32, one matrix at a time
    adapters = 2 * 4 * sizes.matrix if merged else 2 * 2 * setup.adapter * cast
    heads = per_weight * setup.head * (1 if lora else 1 + setup.work.others)
    per_gathered = 2 if cast and not sizes.experts else per_weight
    layers = sizes.layer * (3 * per_gathered + (0 if lora else 4))
    return (0, whole + adapters, heads + layers)


def _rollout_parts(setup: _Setup) -> dict[str, Phases]:
    hf, length = setup.hf, setup.length
    stores = setup.trained_block is not None
    in_flight = rows_in_flight(length, setup.sampler, setup.args.rollout_tokens, stores)
    active = in_flight * setup.block_length  # positions in the active blocks
    piece = max(1, min(PIECE_TOKENS[setup.device] // length, setup.args.rollout_tokens // length, in_flight))
    forward = setup.activations("forward", piece, length).peak + 2 * active * hf.hidden_size * setup.per_weight
    # float32 logits, and three tensors of probabilities for those that are drawn from at once.
    logits, kind = active * hf.vocab_size, setup.device
    probability = 8 if setup.products == "float32" else 4
    drawing = 4 * min(LOGIT_ELEMENTS[kind], logits) + 3 * probability * min(DRAW_ELEMENTS[kind], logits)
    cache = 0
    if stores or setup.sampler.cache != "none":
        per_token = 2 * hf.num_key_value_heads * head_dim(hf) * hf.num_hidden_layers  # numbers
        per_token *= 2 if setup.autocast else setup.per_weight  # bytes
        # When rows finish, the others are moved, a layer at a time. A compiled forward returns its keys and values.
        copied = piece * length * per_token if setup.args.rollout_compile else 0
        held = in_flight * columns_for(length) * per_token
        cache = held + max(copied, held / hf.num_hidden_layers)
    return {"forward, or logits for drawing": (0, max(forward, drawing), 0), "keys and values": (0, cache, 0)}


def _update_parts(setup: _Setup) -> dict[str, Phases]:
    args, sizes, width, vocabulary = setup.args, setup.sizes, setup.hf.hidden_size, setup.hf.vocab_size
    per_weight, trained = setup.per_weight, args.lora is None
    activations = setup.activations(
        "checkpointed" if args.gradient_checkpointing else "full", setup.rows, setup.view_tokens
    )
    targets = min(setup.rows * setup.work.most_targets, setup.rows * setup.length)
    states = 3 * targets * width * per_weight
    logits = targets * vocabulary
    per_logit = 4 * (4 if trained else 2) + (0 if per_weight == 4 else per_weight)
    loss = min(LOSS_ELEMENTS[setup.device], logits) * per_logit
    # lfpo.objectives.measures holds the log-probabilities of every policy and three more tensors of this shape.
    measures = min(LOSS_ELEMENTS[setup.device] // 4, logits) * 4 * (1 + setup.work.others + 3)
    head_gradient = 4 * setup.head if trained else 0
    chunk = max(loss, measures) + head_gradient
    # The larger of two moments: the loss of a chunk, when the body holds only what it keeps; and the body's backward
    # pass, when the head's gradient is held twice; that of a split head has left by then, in a third copy.
    later, leaving = (0, 3 * head_gradient) if args.fsdp else (2 * head_gradient, 0)
    at_head = max(max(chunk, leaving) - (activations.peak - activations.kept), later)
    # After activations, states and chunk are freed: the all-reduce copies the gradients of whole parameters; split
    # embeddings are gathered, and their gradient is copied on its way.
    reduced = 0
    if setup.gpus > 1 and not (args.fsdp and trained):
        reduced = 4 * (setup.adapter or sizes.total)
    elif args.fsdp and trained:
        reduced = setup.head * (per_weight + 2 * 4)
    return {
        "activations of a pass": (0, 0, activations.peak),
        "hidden states at targets": (0, 0, states),
        "logits chunk, head's gradient": (0, 0, at_head),
        "gradients on their way": (0, 0, max(0, reduced - activations.peak - states - at_head)),
    }


def _evaluation_flops(setup: _Setup, prompt_length: int) -> float:
    """Of all evaluations of a run: every eval sampler, on eval_size problems each time."""
    args = setup.args
    times = sum(args.evaluates_after(step) for step in range(args.max_steps + 1))
    problems = args.eval_size if args.task or args.eval_file else 0
    sizes = replace(setup.sizes, active=setup.sizes.active + setup.adapter)
    total = 0.0
    for config in args.eval_samplers.values():
        sampler = config.for_length(setup.length - prompt_length, setup.trained_block)
        assert sampler.gen_length and sampler.block_length
        forwards, tokens = sampling_work(sampler, prompt_length, setup.shift, trained_block=setup.trained_block)
        length = prompt_length + sampler.gen_length / (1 if setup.trained_block is None else 2)
        total += forward_flops(sizes, setup.hf, tokens, length, forwards * sampler.block_length)
    return times * problems * total


def _flops(setup: _Setup) -> tuple[float, float]:
    """Of the rollouts and of the updates of one iteration."""
    args, work = setup.args, setup.work
    sizes = replace(setup.sizes, active=setup.sizes.active + setup.adapter)
    sampled = forward_flops(sizes, setup.hf, work.tokens, setup.sampled_keys, work.forwards * setup.block_length)
    once = forward_flops(sizes, setup.hf, work.views * setup.view_tokens, setup.view_keys, work.targets)
    # A backward pass costs two forwards, or one where the weights are frozen.
    forwards: float = (3 if args.lora is None else 2) + work.others + int(args.gradient_checkpointing)
    forwards += work.before / work.views
    return setup.rollouts * sampled, setup.rollouts * setup.objective.num_iterations * forwards * once


def _transfers(setup: _Setup) -> int:
    """One for the rollouts, two for the EMA, and one for each update pass."""
    args = setup.args
    if not args.offload_reference:
        return 0
    passes = -(-setup.step_views // setup.rows) * args.optimizer_steps_per_iteration * setup.objective.num_iterations
    return 3 + int(passes)
