"""Memory of one GPU in each phase of a run, and the time of an iteration, from a recipe and a model's shape alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from lfpo.objectives import make_objective
from lfpo.objectives.ops.fused import CHUNK_ELEMENTS as LOSS_ELEMENTS
from lfpo.prompts.tasks import get_task
from lfpo.rollout.draw import CHUNK_ELEMENTS as DRAW_ELEMENTS
from lfpo.rollout.forward import PIECE_TOKENS
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.activations import measure
from lfpo.train.plan.shapes import Sizes, adapter_size, shape_of
from lfpo.train.plan.standing import standing
from lfpo.train.plan.work import Work, count, forward_flops

PHASES = ("start", "rollout", "update")
CONTEXT = {"cuda": 2**30, "cpu": 0}  # what CUDA itself takes, about


@dataclass(frozen=True)
class Estimate:
    """parts: name -> bytes of one GPU in each phase (start, rollout, update).
    rows: of one update pass, each of `length` tokens. trained: numbers that are.
    host: name -> bytes of CPU memory of each process. crossings: of the reference's layers to or from it an iteration.
    rollout_flops, update_flops: of one iteration, all GPUs together; the latter with what checkpointing runs again."""

    parts: dict[str, tuple[float, float, float]]
    rows: int
    length: int
    sizes: Sizes
    trained: int
    host: dict[str, float]
    crossings: int
    work: Work
    rollout_flops: float
    update_flops: float

    @property
    def totals(self) -> tuple[float, float, float]:
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


def estimate(
    args: LFPOConfig, config: dict[str, Any], *, gpus: int = 1, prompt_length: int = 256, device: str = "cuda"
) -> Estimate:
    """The plan of a recipe for a model with this config.json. device: "cuda" or "cpu", whose chunks differ."""
    sizes, hf, shift = shape_of(config)
    width, vocabulary, layers = hf.hidden_size, hf.vocab_size, hf.num_hidden_layers
    objective = make_objective(args.objective)
    sampler = args.sampler.for_length(gen_length(args))
    assert sampler.gen_length and sampler.block_length
    length = prompt_length + sampler.gen_length
    work = count(objective, sampler, prompt_length, shift)
    dtype = getattr(torch, args.dtype)
    autocast = args.bf16 and device == "cuda"
    per_value = dtype.itemsize
    share = 1 / gpus if args.fsdp else 1.0

    adapter = layers * adapter_size(config, args.lora) if args.lora is not None else 0
    trained = adapter if args.lora is not None else sizes.total
    needs_base = objective.needs_base
    kept_on = standing(args, sizes, adapter=adapter, share=share, autocast=autocast, needs_base=needs_base)

    # Rows of one pass: as many as the budget allows, but whole units and no more views than there are.
    mine = args.prompts_per_iteration * args.num_generations / gpus / args.optimizer_steps_per_iteration
    rows = max(work.unit, min(args.update_tokens // length, int(-(-mine * work.views // 1))), 1)
    alike: Any = {"layers": layers, "length": length, "dtype": dtype, "lora": args.lora, "autocast": autocast}
    kept = measure(
        "checkpointed" if args.gradient_checkpointing else "kept",
        config,
        rows=rows,
        **alike,
    )

    in_flight = max(1, args.rollout_tokens // length)
    piece = max(1, min(PIECE_TOKENS[device] // length, in_flight))
    alone = measure("forward", config, rows=piece, **alike).peak
    alone += 2 * in_flight * sampler.block_length * width * per_value  # states of the active blocks
    drawn = min(DRAW_ELEMENTS, in_flight * sampler.block_length * vocabulary) * (3 * 8 + per_value)
    head_dim = getattr(hf, "head_dim", None) or width // hf.num_attention_heads
    cache = 0
    if sampler.cache != "none":  # twice: while rows leave, those that stay are copied
        cached = 2 if autocast else per_value
        cache = 2 * in_flight * (length + 1) * 2 * hf.num_key_value_heads * head_dim * layers * cached

    split = args.fsdp and gpus > 1
    # One layer put together, twice while it is copied; trained ones with their gradient before it is split again.
    together = 2 * sizes.layer * per_value + (0 if args.lora else 2 * sizes.layer * 4) if split else 0
    whole = per_value * sizes.layers if split else 0
    exchanged = 0 if gpus == 1 else 4 * (adapter if args.lora else sizes.outside if split else sizes.total)
    states, chunk, gradient = _head(args, min(rows * work.most_targets, rows * length), width, vocabulary, device)
    # The chunk's logits are gone when the body's backward pass begins.
    at_head = max(chunk - (kept.peak - kept.between), gradient)
    parts = {
        **kept_on.parts,
        "layers put together": (0, whole, together),
        "forward, or logits to draw from": (0, max(alone, drawn), 0),
        "keys and values": (0, cache, 0),
        "activations of a pass": (0, 0, kept.peak),
        "states at the targets": (0, 0, states),
        "logits chunk, head's gradient": (0, 0, at_head),
        "exchange of gradients": (0, 0, max(0, exchanged - kept.peak - states - at_head)),  # when these are gone
        "context": (CONTEXT[device],) * 3,
    }
    parts = {name: values for name, values in parts.items() if any(values)}

    shape = {"width": width, "vocabulary": vocabulary, "layers": layers}
    counted = replace(sizes, layers=sizes.layers + adapter)
    per_rollout = forward_flops(
        counted, tokens=work.tokens, length=length, at=work.forwards * sampler.block_length, **shape
    )
    once = forward_flops(counted, tokens=work.views * length, length=length, at=work.targets, **shape)
    times = (3 if args.lora is None else 2) + work.others + int(args.gradient_checkpointing)
    rollouts = args.prompts_per_iteration * args.num_generations
    # Once for the rollouts, forth and back for the average, and once a pass.
    passes = -(-mine * work.views // rows) * args.optimizer_steps_per_iteration * objective.num_iterations
    crossings = 3 + int(passes) if args.offload_reference else 0
    return Estimate(
        parts=parts,
        rows=rows,
        length=length,
        sizes=sizes,
        trained=trained,
        host=kept_on.host,
        crossings=crossings,
        work=work,
        rollout_flops=rollouts * per_rollout,
        update_flops=rollouts * objective.num_iterations * times * once,
    )


def _head(args: LFPOConfig, targets: int, width: int, vocabulary: int, device: str) -> tuple[float, float, float]:
    """Bytes of the states at the targets; of a chunk of their logits, with the head's gradient; and of that gradient,
    twice, later."""
    per_value = getattr(torch, args.dtype).itemsize
    elements = min(LOSS_ELEMENTS[device], targets * vocabulary)
    trained = args.lora is None
    buffers = 4 * (4 if trained else 2) + (0 if per_value == 4 else per_value)
    gradient = 4 * vocabulary * width if trained else 0
    return 3 * targets * width * per_value, elements * buffers + gradient, 2 * gradient
