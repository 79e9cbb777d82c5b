"""Prints a plan: memory, time, suggested changes."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from lfpo.train.config import LFPOConfig
from lfpo.train.plan.changes import Change
from lfpo.train.plan.estimate import PHASES, Estimate
from lfpo.train.plan.settings import PlanConfig

GIB = 2**30


def print_memory(
    found: Estimate,
    args: LFPOConfig,
    config: PlanConfig,
    *,
    memory: float,
    source: str,
    other_activations: float,
    console: Console,
) -> None:
    """memory: bytes of one GPU. source: where that number is from. other_activations: bytes of a pass's activations
    with the opposite setting of gradient_checkpointing."""
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
            table.add_row(f"[dim]  {other} checkpointing[/]", "", "", f"[dim]({other_activations / GIB:.2f})[/]")
    table.add_section()
    table.add_row("[bold]total[/]", *(f"[{_colour(v, memory)}]{v / GIB:.2f}[/]" for v in found.totals))
    table.add_row(f"of {memory / GIB:.0f} GiB ({source})", *(f"{v / memory:.0%}" for v in found.totals))
    console.print(table)
    if found.host:
        held = ", ".join(f"{name} {size / GIB:.1f}" for name, size in found.host.items())
        copied = f"; the reference's layers are copied {found.transfers} times an iteration" if found.transfers else ""
        console.print(f"GiB in CPU memory, for each rank: {held}{copied}.", soft_wrap=True)
    console.print(
        f"A pass of the update: {found.rows} views of {found.length} tokens (prompt {config.prompt_length}). "
        + ("It fits." if found.peak <= memory else "[bold red]It does not fit.[/]"),
        soft_wrap=True,
    )


def _colour(value: float, memory: float) -> str:
    return "red" if value > memory else "yellow" if value > 0.9 * memory else "green"


def print_time(found: Estimate, seconds: tuple[float, float], assumption: str, console: Console) -> None:
    """seconds: of the rollouts and of the updates of an iteration. assumption: the rates that they rest on."""
    work = found.work
    console.print(
        f"An iteration: rollouts {found.rollout_flops / 1e15:.3g} PFLOP, {_time(seconds[0])} (at most {work.forwards} "
        f"forwards a rollout; early stopping takes fewer); update {found.update_flops / 1e15:.3g} PFLOP, "
        f"{_time(seconds[1])} ({work.views:g} views a rollout). Rewards and the traffic between GPUs are not counted.\n"
        f"At {assumption}.",
        soft_wrap=True,
    )


def _time(seconds: float) -> str:
    if seconds < 99:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def print_changes(changes: list[Change], memory: float, console: Console) -> None:
    table = Table(title="What to change, in this order", box=box.SIMPLE, title_justify="left")
    for name in ("change", "peak GiB", ""):
        table.add_column(name, justify="right" if name == "peak GiB" else "left")
    for label, peak in changes:
        table.add_row(label, f"{peak / GIB:.1f}", "[green]fits[/]" if peak <= memory else "[red]too much[/]")
    console.print(table)
