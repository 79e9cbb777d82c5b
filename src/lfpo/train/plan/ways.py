"""The ways to run a recipe that fit the GPUs, as it stands or with changes, and what a whole run takes in each."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lfpo.base.config import flattened, flow_text, merge
from lfpo.models.settings import LoraSettings
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import Estimate

# Estimate(args, gpus=...) for a given model, prompt length and device.
Plan = Callable[..., Estimate]
Changes = dict[str, Any]

GIB = 2**30
MORE = (2, 4, 8, 16)  # numbers of GPUs that are tried besides the stated one
EFFICIENCY = 0.5  # speed of a whole iteration, relative to one large matrix product
SPARE = 0.9  # share of the memory that changes aim at: the allocator's fragmentation comes on top
ENOUGH = 8192  # tokens at once that keep a large GPU busy: fewer only where nothing else fits
CHECKPOINTED: Changes = {"gradient_checkpointing": True}
# The first that fits is taken: smaller moments, then the reference in CPU memory, then moments that move there.
LIGHTER: tuple[Changes, ...] = (
    {},
    {"optim": "adamw_8bit"},
    {"optim": "adamw_8bit", "offload_reference": True},
    {"optim": "paged_adamw_8bit", "offload_reference": True},
)
PLAIN: Changes = {"optim": "adamw_torch", "offload_reference": False}
FSDP: Changes = {"fsdp": True, **PLAIN, "load_in_4bit": False}
SPLIT = (FSDP, FSDP | {"rollout_gather": "layer"})
ADAPTER: Changes = {"lora": {"r": LoraSettings().r}, "dtype": "bfloat16", **PLAIN}
IN_4BIT: Changes = {"load_in_4bit": True, "fsdp": False, "fsdp_size": 0, "rollout_gather": "model"}


@dataclass(frozen=True)
class Way:
    """label: what it is. changes: keys of the recipe with their new values. found: the estimate with these changes."""

    label: str
    changes: Changes
    found: Estimate


def ways(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> list[Way]:
    """Ways to run the recipe within `memory` bytes a GPU, the recipe as it stands first; empty if nothing fits.

    gpus: the stated number of GPUs. If it is 1, ways on more GPUs are included.
    """
    more = [n for n in MORE if gpus == 1 and n <= args.prompts_per_iteration]
    one_or_eight = [gpus, *(n for n in more if n == 8)]
    unchanged = [Way("as it stands", {}, plan(args, gpus=n)) for n in one_or_eight]
    if unchanged[0].found.peak <= memory:
        return [way for way in unchanged if way.found.peak <= memory]
    # A compiled forward needs its weights to stay where they are.
    lighter = [changes for changes in LIGHTER if not (args.rollout_compile and changes.get("offload_reference"))]
    all_weights, experts = args.lora is None, unchanged[0].found.sizes.experts  # experts are not quantised
    adapter = ADAPTER if all_weights else {}
    found: list[Way] = []
    for label, possible, numbers, choices in (
        ("all weights", all_weights and not args.fsdp, [gpus], lighter),
        ("all weights, FSDP", all_weights, [n for n in (gpus, *more) if n > 1], SPLIT),
        ("LoRA", not args.load_in_4bit, one_or_eight, [adapter]),
        ("LoRA, 4-bit base", not experts, one_or_eight, [adapter | IN_4BIT]),
    ):
        for changes in choices if possible else ():  # those that fit with the first changes with which any does
            each = [_fitting(plan, args, label, CHECKPOINTED | changes, n, memory) for n in numbers]
            if fits := [way for way in each if way is not None]:
                found += fits
                break
    return found


def _fitting(plan: Plan, args: LFPOConfig, label: str, changes: Changes, gpus: int, memory: float) -> Way | None:
    """The way with these changes and, where that is not enough, fewer tokens at once; None if it never fits."""
    changes = {key: value for key, value in changes.items() if value != getattr(args, key)}
    lora = LoraSettings(**changes["lora"]) if "lora" in changes else args.lora
    args = replace(args, **changes | {"lora": lora})
    found = plan(args, gpus=gpus)
    if found.totals[0] > memory:  # more than fits before the first token
        return None
    best = Way(label, changes, found) if found.peak <= memory else None
    tokens = min(args.update_tokens, args.rollout_tokens)
    while found.peak > (SPARE * memory if tokens > ENOUGH else memory) and tokens // 2 >= found.length:
        tokens //= 2
        fewer = {name: min(getattr(args, name), tokens) for name in ("update_tokens", "rollout_tokens")}
        found = plan(replace(args, **fewer), gpus=gpus)
        if found.peak <= memory:
            best = Way(label, changes | fewer, found)
    return best


def seconds(found: Estimate, flop_rate: float) -> tuple[float, float, float]:
    """Of an iteration: its rollouts, its update, and the whole of it, on GPUs of `flop_rate` FLOP/s each.

    An optimiser step takes as long as on its fullest rank. Ray workers sample on GPUs like these beside them, with
    max_staleness while the trainer updates.
    """
    workers = _worker_gpus(found.args)
    rollout = found.rollout_flops / flop_rate / (workers or found.gpus)
    update = found.update_flops / flop_rate / found.gpus * found.fullest
    beside = bool(workers and found.args.engine.max_staleness)
    return rollout, update, max(rollout, update) if beside else rollout + update


def _worker_gpus(args: LFPOConfig) -> float:
    """GPUs of all Ray workers; one for each where they have none. 0 for another engine."""
    return args.engine.workers * (args.engine.gpus_per_worker or 1.0) if args.engine.name == "ray" else 0.0


@dataclass(frozen=True)
class WholeRun:
    """tokens: that are sampled in training, at most. cost: in the currency of the price, None without one."""

    training_hours: float
    evaluation_hours: float
    tokens: int
    cost: float | None


def whole_run(found: Estimate, flop_rate: float, price_per_hour: float | None) -> WholeRun:
    """A run from its first to its last iteration, at `flop_rate` FLOP/s of one GPU and a price of one GPU's hour. All
    forwards that the schedules allow are counted; loading, rewards, checkpoints and traffic between GPUs are not."""
    args = found.args
    training = args.max_steps * seconds(found, flop_rate)[2] / 3600
    evaluation = found.evaluation_flops / (3600 * flop_rate * found.gpus)
    gpus = found.gpus + _worker_gpus(args)
    cost = None if price_per_hour is None else (training + evaluation) * gpus * price_per_hour
    return WholeRun(training, evaluation, args.max_steps * found.rollouts * found.completion, cost)


def duration(seconds: float) -> str:
    """Two digits or so, in the unit that suits."""
    if seconds < 99:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3570 else f"{seconds / 3600:.1f} h"


def command(recipe: str | None, given: dict[str, Any], changes: Changes, gpus: int, per_machine: int) -> str:
    """The command line that trains with these changes; on several machines, to be typed on each of them.

    recipe: a file or a recipe's name. given: keys that were given beside it. per_machine: GPUs of one machine.
    """
    keys = merge(given, changes)
    if recipe is None:
        prompts = {} if keys.keys() & {"task", "data_file", "dataset_name"} else {"task": "TASK"}
        keys = {"output_dir": "runs/mine"} | prompts | keys
    words = ["lfpo", "train", *([recipe] if recipe else [])]
    for key, value in flattened(keys, whole=["lora"]).items():
        words += [f"--{key}", value if isinstance(value, str) else flow_text(value)]
    machines = -(-gpus // per_machine)
    meeting = ["--nnodes", str(machines), "--rdzv_backend", "c10d", "--rdzv_endpoint", "FIRST_MACHINE:29500"]
    starter = ["torchrun", *(meeting if machines > 1 else []), "--nproc_per_node", str(gpus // machines), "-m"]
    return shlex.join((starter if gpus > 1 else []) + words)
