"""Ways to run a recipe that fit a GPU's memory, and the command of each."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from lfpo.config.build import flattened, flow_text, merge
from lfpo.config.json import Json
from lfpo.config.models import LoraSettings
from lfpo.config.train import LFPOConfig
from lfpo.plan.estimate import Estimate

# Estimate(args, gpus=...) for a given model, prompt length and device.
Plan = Callable[..., Estimate]
Changes = Json

MORE = (2, 4, 8, 16)  # numbers of GPUs that are tried besides the stated one
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
    """A way to run a recipe. changes: keys of the recipe with their new values. estimate: with these."""

    label: str
    changes: Changes
    estimate: Estimate


def ways(plan: Plan, args: LFPOConfig, gpus: int, memory: float) -> list[Way]:
    """Ways to run the recipe within `memory` bytes a GPU, the recipe as it stands first; empty if nothing fits.

    gpus: the stated number of GPUs. If it is 1, ways on more GPUs are included.
    """
    more_gpus = [n for n in MORE if gpus == 1 and n <= args.prompts_per_iteration]
    one_or_eight = [gpus, *(n for n in more_gpus if n == 8)]
    unchanged = [Way("as it stands", {}, plan(args, gpus=n)) for n in one_or_eight]
    if unchanged[0].estimate.peak <= memory:
        return [way for way in unchanged if way.estimate.peak <= memory]
    # A compiled forward needs its weights to stay where they are.
    lighter = [changes for changes in LIGHTER if not (args.rollout_compile and changes.get("offload_reference"))]
    all_weights, experts = args.lora is None, unchanged[0].estimate.sizes.experts  # experts are not quantised
    adapter = ADAPTER if all_weights else {}
    fitting: list[Way] = []
    for label, possible, numbers, choices in (
        ("all weights", all_weights and not args.fsdp, [gpus], lighter),
        ("all weights, FSDP", all_weights, [n for n in (gpus, *more_gpus) if n > 1], SPLIT),
        ("LoRA", not args.load_in_4bit, one_or_eight, [adapter]),
        ("LoRA, 4-bit base", not experts, one_or_eight, [adapter | IN_4BIT]),
    ):
        for changes in choices if possible else ():  # those that fit with the first changes with which any does
            each = [_fitting(plan, args, label, CHECKPOINTED | changes, n, memory) for n in numbers]
            if fits := [way for way in each if way is not None]:
                fitting += fits
                break
    return fitting


def _fitting(plan: Plan, args: LFPOConfig, label: str, changes: Changes, gpus: int, memory: float) -> Way | None:
    """The way with these changes and, where that is not enough, fewer tokens at once; None if it never fits."""
    changes = {key: value for key, value in changes.items() if value != getattr(args, key)}
    args = replace(args, **changes)
    estimate = plan(args, gpus=gpus)
    if estimate.totals[0] > memory:  # more than fits before the first token
        return None
    best = Way(label, changes, estimate) if estimate.peak <= memory else None
    tokens = min(args.update_tokens, args.rollout_tokens)
    # Halved until it fits with room to spare; below ENOUGH tokens, where speed suffers, until it just fits.
    while estimate.peak > (SPARE * memory if tokens > ENOUGH else memory) and tokens // 2 >= estimate.length:
        tokens //= 2
        fewer = {name: min(getattr(args, name), tokens) for name in ("update_tokens", "rollout_tokens")}
        estimate = plan(replace(args, **fewer), gpus=gpus)
        if estimate.peak <= memory:
            best = Way(label, changes | fewer, estimate)
    return best


def command(recipe: str | None, overrides: Json, changes: Changes, gpus: int, per_machine: int) -> str:
    """The command line that trains with these changes; on several machines, to be typed on each of them.

    recipe: a file or a recipe's name. overrides: keys that were given beside it. per_machine: GPUs of one machine.
    """
    keys = merge(overrides, changes)
    if recipe is None:
        prompts = {} if keys.keys() & {"task", "data_file", "dataset_name"} else {"task": "TASK"}
        keys = {"output_dir": "runs/mine"} | prompts | keys
    words = ["lfpo", "train", *([recipe] if recipe else [])]
    for key, value in flattened(keys, unsplit=["lora"]).items():
        words += [f"--{key}", value if isinstance(value, str) else flow_text(value)]
    machines = -(-gpus // per_machine)
    meeting = ["--nnodes", str(machines), "--rdzv_backend", "c10d", "--rdzv_endpoint", "FIRST_MACHINE:29500"]
    starter = ["torchrun", *(meeting if machines > 1 else []), "--nproc_per_node", str(gpus // machines), "-m"]
    return shlex.join((starter if gpus > 1 else []) + words)
