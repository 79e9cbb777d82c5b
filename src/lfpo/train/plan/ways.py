"""The ways to run a recipe that fit the GPUs, as it stands or with changes, and what a whole run takes in each."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lfpo.base.config import flow_text, merge
from lfpo.models.settings import LoraSettings
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import Estimate

# estimate(args, gpus=...) for a given model, prompt length and device.
Plan = Callable[..., Estimate]
Changes = dict[str, Any]

MORE = (2, 4, 8, 16)  # numbers of GPUs that are tried besides the stated one
EFFICIENCY = 0.5  # speed of a whole iteration, relative to one large matrix product
SPARE = 0.9  # share of the memory that changes aim at: the allocator's fragmentation comes on top
ENOUGH = 8192  # tokens at once that keep a large GPU busy: fewer only where nothing else fits
CHECKPOINTED: Changes = {"gradient_checkpointing": True}
# Each on top of those before it, until it fits: smaller moments, the reference in CPU memory, moments that move there.
LIGHTER: tuple[Changes, ...] = (
    {},
    {"optim": "adamw_8bit"},
    {"offload_reference": True},
    {"optim": "paged_adamw_8bit"},
)
SPLIT: Changes = {"fsdp": True, "optim": "adamw_torch", "offload_reference": False, "load_in_4bit": False}
ADAPTER: Changes = {
    "lora": {"r": LoraSettings().r},
    "dtype": "bfloat16",
    "optim": "adamw_torch",
    "offload_reference": False,
}


@dataclass(frozen=True)
class Way:
    """label: what it is. changes: keys of the recipe with their new values. gpus: ranks. found: its estimate."""

    label: str
    changes: Changes
    gpus: int
    found: Estimate


def ways(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> list[Way]:
    """Ways to run the recipe within `memory` bytes a GPU, the recipe as it stands first; empty if nothing fits.

    gpus: the stated number of GPUs. If it is 1, ways on more GPUs are included.
    """
    more = [n for n in MORE if gpus == 1 and n <= args.prompts_per_iteration]
    unchanged = [Way("as it stands", {}, n, plan(args, gpus=n)) for n in [gpus, *(n for n in more if n == 8)]]
    if unchanged[0].found.peak <= memory:
        return [way for way in unchanged if way.found.peak <= memory]
    found = list(_whole_weights(plan, args, gpus, more, memory)) if args.lora is None else []
    return found + list(_adapters(plan, args, gpus, more, memory))


def changed(args: LFPOConfig, changes: Changes) -> LFPOConfig:
    """The recipe with these changes."""
    values = dict(changes)
    if values.get("lora"):
        values["lora"] = LoraSettings(**values["lora"])
    return replace(args, **values)


def _whole_weights(plan: Plan, args: LFPOConfig, gpus: int, more: list[int], memory: float) -> Iterator[Way]:
    """All weights trained: whole on each GPU, and split by FSDP over 2 and more."""
    if not args.fsdp:
        changes = dict(CHECKPOINTED)
        for lighter in LIGHTER:
            changes |= lighter
            if changes.get("offload_reference") and args.rollout_compile:
                continue
            if way := _way(plan, args, "all weights", changes, gpus, memory):
                yield way
                break
    for n in [gpus, *more]:
        if n > 1 and (way := _way(plan, args, "all weights, FSDP", CHECKPOINTED | SPLIT, n, memory)):
            yield way


def _adapters(plan: Plan, args: LFPOConfig, gpus: int, more: list[int], memory: float) -> Iterator[Way]:
    """LoRA on a base in bfloat16, and on one in 4 bits."""
    lora = CHECKPOINTED | (ADAPTER if args.lora is None else {})
    four_bit = lora | {"load_in_4bit": True, "fsdp": False, "fsdp_size": 0}
    experts = plan(args, gpus=gpus).sizes.experts  # these are not quantised
    for label, changes in (("LoRA", lora), ("LoRA, 4-bit base", four_bit)):
        if (changes is lora and args.load_in_4bit) or (changes is four_bit and experts):
            continue
        for n in [gpus, *(n for n in more if n == 8)]:
            if way := _way(plan, args, label, changes, n, memory):
                yield way


def _way(plan: Plan, args: LFPOConfig, label: str, changes: Changes, gpus: int, memory: float) -> Way | None:
    """The way with these changes and, where that is not enough, fewer tokens at once; None if it never fits."""
    changes = {key: value for key, value in changes.items() if value != getattr(args, key)}
    args = changed(args, changes)
    found = plan(args, gpus=gpus)
    if found.totals[0] > memory:  # more than fits before the first token
        return None
    best = Way(label, changes, gpus, found) if found.peak <= memory else None
    tokens = min(args.update_tokens, args.rollout_tokens)
    while found.peak > (SPARE * memory if tokens > ENOUGH else memory) and tokens // 2 >= found.length:
        tokens //= 2
        fewer = {name: min(getattr(args, name), tokens) for name in ("update_tokens", "rollout_tokens")}
        found = plan(replace(args, **fewer), gpus=gpus)
        if found.peak <= memory:
            best = Way(label, changes | fewer, gpus, found)
    return best


@dataclass(frozen=True)
class WholeRun:
    """tokens: that are sampled in training, at most. cost: in the currency of the price, None without one."""

    training_hours: float
    evaluation_hours: float
    tokens: int
    cost: float | None


def seconds(found: Estimate, args: LFPOConfig, gpus: int, flop_rate: float) -> tuple[float, float, float]:
    """Of an iteration: its rollouts, its update, and the whole of it, on `gpus` GPUs of `flop_rate` FLOP/s each.

    Ray workers sample on GPUs like these beside them, with max_staleness while the trainer updates.
    """
    engine = args.engine
    rollout, update = (flops / flop_rate / gpus for flops in (found.rollout_flops, found.update_flops))
    if engine.name != "ray":
        return rollout, update, rollout + update
    rollout = rollout * gpus / worker_gpus(args)
    return rollout, update, max(rollout, update) if engine.max_staleness else rollout + update


def worker_gpus(args: LFPOConfig) -> float:
    """GPUs of all Ray workers; one for each where they have none. 0 for another engine."""
    engine = args.engine
    return engine.workers * (engine.gpus_per_worker or 1.0) if engine.name == "ray" else 0.0


def whole_run(way: Way, args: LFPOConfig, flop_rate: float, price_per_hour: float | None) -> WholeRun:
    """A run from its first to its last iteration, at `flop_rate` FLOP/s of one GPU and a price of one GPU's hour.

    All forwards that the schedules allow are counted; early stopping takes fewer. Loading, rewards, checkpoints and
    traffic between GPUs are not counted.
    """
    args = changed(args, way.changes)
    training = args.max_steps * seconds(way.found, args, way.gpus, flop_rate)[2] / 3600
    evaluation = way.found.evaluation_flops / (3600 * flop_rate * way.gpus)
    rollouts = args.max_steps * args.prompts_per_iteration * args.num_generations
    cost = None if price_per_hour is None else (training + evaluation) * (way.gpus + worker_gpus(args)) * price_per_hour
    return WholeRun(training, evaluation, rollouts * way.found.completion, cost)


def command(recipe: str | None, given: dict[str, Any], way: Way, per_machine: int) -> str:
    """The command line that trains in this way; on several machines, to be typed on each of them.

    recipe: a file or a recipe's name. given: keys that were given beside it. per_machine: GPUs of one machine.
    """
    keys = merge(given, way.changes)
    if recipe is None:
        keys = {"output_dir": "runs/mine"} | keys
    words = [recipe] if recipe else []
    for key, value in _flat(keys):
        words += [f"--{key}", value if isinstance(value, str) else flow_text(value)]
    machines = -(-way.gpus // per_machine)
    starter = ["lfpo", "train"]
    if way.gpus > 1:
        where = ["--nnodes", str(machines), "--rdzv_backend", "c10d", "--rdzv_endpoint", "FIRST_MACHINE:29500"]
        each = ["--nproc_per_node", str(way.gpus // machines)]
        starter = ["torchrun", *(where if machines > 1 else []), *each, "-m", "lfpo", "train"]
    return shlex.join(starter + words)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested mappings; lora and empty mappings are single values."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "lora":
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
