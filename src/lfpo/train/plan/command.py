"""`lfpo plan`: what a recipe takes on each GPU, whether that fits, how long an iteration is, and what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from lfpo.base.checks import at_least_one
from lfpo.base.config import build, merge
from lfpo.base.errors import UserError
from lfpo.base.files import replace_file
from lfpo.base.measure import matmul_peak
from lfpo.models.lora import LoraSettings
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import PHASES, Estimate, estimate
from lfpo.train.plan.shapes import model_config

GIB = 2**30
EFFICIENCY = 0.5  # of a large product's speed, over a whole iteration
ASSUMED_MEMORY, ASSUMED_TFLOPS, ASSUMED_TFLOPS_FLOAT32 = 80.0, 400.0, 30.0  # an H100 at about half of its peaks


@dataclass
class PlanConfig:
    """Configuration of `lfpo plan`, beside the keys of the recipe (those of lfpo train).

    gpus: processes of torchrun, one a GPU. gpu_memory: of one, in GiB (None: this machine's GPU, else 80).
    prompt_length: tokens of a long prompt; the recipe does not say.
    tflops, tflops_float32: matrix products a second, in 10^12 FLOPs, that training keeps up in 16-bit and in float32
        (None: half of what one large product reaches here; without a GPU 400 and 30, about half of an H100's peaks).
    device: what to plan for; a CPU's chunks are smaller.
    output: a JSON file with all of it.
    """

    gpus: int = 1
    gpu_memory: float | None = None
    prompt_length: int = 256
    tflops: float | None = None
    tflops_float32: float | None = None
    device: str = "cuda"
    output: str | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "gpus", "prompt_length")
        for name in ("gpu_memory", "tflops", "tflops_float32"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name!r} must be above 0")
        if self.device not in ("cuda", "cpu"):
            raise ValueError(f"device {self.device!r} must be cuda or cpu")


def configure(values: dict[str, Any], overrides: dict[str, Any]) -> tuple[PlanConfig, LFPOConfig]:
    """The plan's own keys and the recipe's, from a recipe file and the command line."""
    mine = {name: overrides.pop(name) for name in list(overrides) if name in PlanConfig.__dataclass_fields__}
    recipe = merge({"output_dir": "runs/plan", **values}, overrides)
    return build(PlanConfig, mine, "lfpo plan"), build(LFPOConfig, recipe, "lfpo plan")


def run_plan(config: PlanConfig, args: LFPOConfig, console: Console | None = None) -> Estimate:
    """Print the plan, and what to change where it does not fit; returns it."""
    console = console or Console()
    model = model_config(args.model)
    found = _plan(config, args, model)
    memory, source = _memory(config)
    rates, assumption = _rates(config)
    turned = _plan(config, replace(args, gradient_checkpointing=not args.gradient_checkpointing), model)
    _print_memory(found, turned, args, config, memory, source, console)
    seconds = _seconds(found, args, config, rates)
    _print_time(found, seconds, assumption, console)
    changes = []
    if found.peak > memory:
        changes = list(suggestions(config, args, model, memory))
        _print_changes(changes, memory, console)
    if config.output:
        path = Path(config.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {
            "phases": PHASES,
            "bytes": found.parts,
            "total": found.totals,
            "host": found.host,
            "gpu_memory": memory,
            "fits": found.peak <= memory,
            "seconds": {"rollout": seconds[0], "update": seconds[1]},
            "assumption": assumption,
            "changes": [{"change": label, "bytes": total} for label, total in changes],
        }
        replace_file(path, json.dumps(result, indent=1) + "\n")
    return found


def out_of_memory(error: BaseException, args: LFPOConfig, gpus: int) -> UserError | None:
    """What to say of an error that is a lack of memory, with the plan's numbers; None for any other."""
    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "DefaultCPUAllocator" not in text:
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    said = text.splitlines()[0] if text else "an allocation failed"
    try:
        found = _plan(PlanConfig(gpus=gpus, device=device), args, model_config(args.model))
    except UserError:  # a model that only this process knows
        return UserError(f"out of memory ({said}); see `lfpo plan`, and lower update_tokens or rollout_tokens")
    phase, peak = max(zip(PHASES, found.totals, strict=True), key=lambda pair: pair[1])
    column = PHASES.index(phase)
    largest = sorted(found.parts, key=lambda name: -found.parts[name][column])[:3]
    counted = ", ".join(f"{name} {found.parts[name][column] / GIB:.2f}" for name in largest)
    return UserError(
        f"out of memory ({said}); `lfpo plan` counts {peak / GIB:.2f} GiB in the {phase} phase, most of it {counted}; "
        f"lower update_tokens (now {args.update_tokens}) or rollout_tokens (now {args.rollout_tokens}), set "
        "gradient_checkpointing or lora, or take more GPUs with fsdp, then --resume"
    )


def suggestions(
    config: PlanConfig, args: LFPOConfig, model: dict[str, Any], memory: float
) -> Iterator[tuple[str, float]]:
    """Changes, each with the peak in bytes that it leads to; each builds on those before it, until the run fits."""
    if not args.gradient_checkpointing:
        args = replace(args, gradient_checkpointing=True)
        peak = _plan(config, args, model).peak
        yield "gradient_checkpointing: true", peak
        if peak <= memory:
            return
    if (fewer := _fewer_tokens(config, args, model, memory)) is not None:
        yield fewer
        return
    if args.lora is None and not args.fsdp:
        light = args
        changes: list[dict[str, Any]] = [{"optim": "adamw_8bit"}, {"offload_reference": True}]
        for change in (*changes, {"optim": "paged_adamw_8bit"}):
            ((name, value),) = change.items()
            if getattr(args, name) in ("paged_adamw_8bit", value) or (args.rollout_compile and value is True):
                continue
            light = replace(light, **change)
            peak = _plan(config, light, model).peak
            yield f"{name}: {str(value).lower()}", peak
            if peak <= memory:
                return
        if (fewer := _fewer_tokens(config, light, model, memory)) is not None:
            yield fewer
    plain = replace(args, fsdp=True, load_in_4bit=False, offload_reference=False)
    plain = plain if args.lora else replace(plain, optim="adamw_torch")
    gpus = config.gpus
    while gpus * 2 <= min(64, args.prompts_per_iteration):
        gpus *= 2
        peak = _plan(replace(config, gpus=gpus), plain, model).peak
        if peak <= memory:
            yield f"or {gpus} GPUs with fsdp: true", peak
            break
    light = args
    if args.lora is None:
        light = replace(args, lora=LoraSettings(), dtype="bfloat16", offload_reference=False)
        peak = _plan(config, light, model).peak
        yield f"or lora: {{r: {LoraSettings().r}}}, dtype: bfloat16", peak
        if peak <= memory:
            return
    if not args.fsdp and not args.load_in_4bit:
        yield "load_in_4bit: true", _plan(config, replace(light, load_in_4bit=True), model).peak


def _fewer_tokens(
    config: PlanConfig, args: LFPOConfig, model: dict[str, Any], memory: float
) -> tuple[str, float] | None:
    """Halved until the run fits, if it ever does."""
    tokens = min(args.update_tokens, args.rollout_tokens)
    found = _plan(config, args, model)
    if found.totals[0] > memory:  # what is held before any token is too much
        return None
    while tokens // 2 >= found.length:
        tokens //= 2
        smaller = replace(
            args, update_tokens=min(args.update_tokens, tokens), rollout_tokens=min(args.rollout_tokens, tokens)
        )
        peak = _plan(config, smaller, model).peak
        if peak <= memory:
            return f"update_tokens and rollout_tokens: {tokens}", peak
    return None


def _plan(config: PlanConfig, args: LFPOConfig, model: dict[str, Any]) -> Estimate:
    return estimate(args, model, gpus=config.gpus, prompt_length=config.prompt_length, device=config.device)


def _memory(config: PlanConfig) -> tuple[float, str]:
    """Bytes of one GPU, and where the number comes from."""
    if config.gpu_memory is not None:
        return config.gpu_memory * GIB, "as stated"
    if config.device == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory), torch.cuda.get_device_name(0)
    return ASSUMED_MEMORY * GIB, "assumed; --gpu_memory says otherwise"


def _rates(config: PlanConfig) -> tuple[dict[str, float], str]:
    """FLOP/s in each dtype, and what they rest on."""
    here = config.device if config.device == "cpu" or torch.cuda.is_available() else None
    rates, origins = {}, []
    for dtype, stated, assumed in (
        ("bfloat16", config.tflops, ASSUMED_TFLOPS),
        ("float32", config.tflops_float32, ASSUMED_TFLOPS_FLOAT32),
    ):
        if stated is not None:
            rates[dtype], origin = stated * 1e12, "stated"
        elif here is not None:
            rates[dtype] = EFFICIENCY * matmul_peak(torch.device(here), getattr(torch, dtype))
            origin = f"{EFFICIENCY:.0%} of one large product, measured here"
        else:
            rates[dtype], origin = assumed * 1e12, "assumed"
        origins.append(f"{rates[dtype] / 1e12:.3g} TFLOP/s in {dtype} ({origin})")
    return rates, ", ".join(origins)


def _seconds(found: Estimate, args: LFPOConfig, config: PlanConfig, rates: dict[str, float]) -> tuple[float, float]:
    """Of the rollouts and of the updates of one iteration."""
    rate = rates["bfloat16" if args.bf16 and config.device == "cuda" else args.dtype] * config.gpus
    return found.rollout_flops / rate, found.update_flops / rate


def _print_memory(
    found: Estimate,
    turned: Estimate,
    args: LFPOConfig,
    config: PlanConfig,
    memory: float,
    source: str,
    console: Console,
) -> None:
    """turned: the plan with gradient checkpointing the other way round."""
    how = "LoRA" if args.lora else "all weights"
    split = ", split by FSDP2" if args.fsdp else ""
    title = f"{args.model}: {found.sizes.total / 1e9:.2f} B parameters, {found.trained / 1e9:.2f} B trained ({how})"
    console.print(f"{title}, {config.gpus} GPU{'s' if config.gpus > 1 else ''}{split}", soft_wrap=True)
    table = Table(box=box.SIMPLE)
    table.add_column("GiB on each GPU", no_wrap=True)
    for phase in PHASES:
        table.add_column(phase, justify="right")
    for name, values in found.parts.items():
        table.add_row(name, *(f"{v / GIB:.2f}" if v else "" for v in values))
        if name == "activations of a pass":
            other = "without" if args.gradient_checkpointing else "with"
            table.add_row(f"[dim]  {other} checkpointing[/]", "", "", f"[dim]({turned.parts[name][2] / GIB:.2f})[/]")
    table.add_section()
    table.add_row("[bold]total[/]", *(f"[{_colour(v, memory)}]{v / GIB:.2f}[/]" for v in found.totals))
    table.add_row(f"of {memory / GIB:.0f} GiB ({source})", *(f"{v / memory:.0%}" for v in found.totals))
    console.print(table)
    if found.host:
        held = ", ".join(f"{name} {size / GIB:.1f}" for name, size in found.host.items())
        cross = f"; the reference's layers cross {found.crossings} times an iteration" if found.crossings else ""
        console.print(f"GiB in CPU memory, of each process: {held}{cross}.", soft_wrap=True)
    console.print(
        f"A pass of the update: {found.rows} views of {found.length} tokens (prompt {config.prompt_length}). "
        + ("It fits." if found.peak <= memory else "[bold red]It does not fit.[/]"),
        soft_wrap=True,
    )


def _colour(value: float, memory: float) -> str:
    return "red" if value > memory else "yellow" if value > 0.9 * memory else "green"


def _print_time(found: Estimate, seconds: tuple[float, float], assumption: str, console: Console) -> None:
    work = found.work
    console.print(
        f"An iteration: rollouts {found.rollout_flops / 1e15:.3g} PFLOP, {_time(seconds[0])} (at most {work.forwards} "
        f"forwards a rollout; early stopping takes fewer); update {found.update_flops / 1e15:.3g} PFLOP, "
        f"{_time(seconds[1])} ({work.views:g} views a rollout). Rewards and the traffic between GPUs are not counted.\n"
        f"At {assumption}.",
        soft_wrap=True,
    )


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2g} s"
        if seconds < 99
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def _print_changes(changes: list[tuple[str, float]], memory: float, console: Console) -> None:
    table = Table(title="What to change, one after the other", box=box.SIMPLE, title_justify="left")
    for name in ("change", "peak GiB", ""):
        table.add_column(name, justify="right" if name == "peak GiB" else "left")
    for label, peak in changes:
        table.add_row(label, f"{peak / GIB:.1f}", "[green]fits[/]" if peak <= memory else "[red]too much[/]")
    console.print(table)
