"""Prints a plan: memory, time of an iteration, and the ways that fit."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import PHASES, Estimate
from lfpo.train.plan.settings import PlanConfig
from lfpo.train.plan.ways import Way, WholeRun

GIB = 2**30


def readable(parameters: int) -> str:
    """A number of parameters in billions with two decimals, or below a billion in millions with three digits."""
    return f"{parameters / 1e9:.2f} B" if parameters >= 999.5e6 else f"{parameters / 1e6:.3g} M"


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
    sizes = found.sizes
    active = f", {readable(sizes.total_active)} active" if sizes.experts else ""
    title = f"{args.model}: {readable(sizes.total)} parameters{active}, {readable(found.trained)} trained ({how})"
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
    table.add_row(f"of {memory / GIB:.3g} GiB ({source})", *(f"{v / memory:.0%}" for v in found.totals))
    console.print(table)
    if found.host:
        held = ", ".join(f"{name} {size / GIB:.1f}" for name, size in found.host.items())
        copied = f"; the reference's layers are copied {found.transfers} times an iteration" if found.transfers else ""
        console.print(f"GiB in CPU memory, for each rank: {held}{copied}.", soft_wrap=True)
    console.print(
        f"A pass of the update: {found.rows} views of {found.length} tokens (prompt {config.prompt_length})"
        f"{', each run beside its clean copy, twice the tokens' if found.doubled else ''}. "
        + ("It fits." if found.peak <= memory else "[bold red]It does not fit.[/]"),
        soft_wrap=True,
    )


def _colour(value: float, memory: float) -> str:
    return "red" if value > memory else "yellow" if value > 0.9 * memory else "green"


def print_time(
    found: Estimate, args: LFPOConfig, seconds: tuple[float, float, float], assumption: str, console: Console
) -> None:
    """seconds: of an iteration's rollouts, of its updates, and of the whole of it. assumption: the rates that they rest
    on."""
    engine, where = args.engine, ""
    if engine.name == "ray":
        order = "beside" if engine.max_staleness else "before"
        where = (
            f"\nRollouts run on {engine.workers} Ray workers, each on a GPU like these, {order} the update: "
            f"{duration(seconds[2])} an iteration."
        )
    work, rollouts, update = found.work, duration(seconds[0]), duration(seconds[1])
    console.print(
        f"An iteration: rollouts {found.rollout_flops / 1e15:.3g} PFLOP, {rollouts} (at most {work.forwards} forwards "
        f"a rollout; early stopping takes fewer); update {found.update_flops / 1e15:.3g} PFLOP, {update} "
        f"({work.views:g} views a rollout).{where}\n"
        f"At {assumption}.",
        soft_wrap=True,
    )


def duration(seconds: float) -> str:
    """Two digits or so, in the unit that suits."""
    if seconds < 99:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3570 else f"{seconds / 3600:.1f} h"


def print_ways(rows: list[tuple[Way, WholeRun, str]], memory: float, console: Console) -> None:
    """A table of the ways that fit, with what a whole run takes, and under it the command of each."""
    table = Table(title=f"Whole runs that fit {memory / GIB:.3g} GiB a GPU", box=box.SIMPLE, title_justify="left")
    table.add_column("", justify="right")
    table.add_column("way")
    for name in ("GPUs", "peak GiB", "training", "evaluation", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    priced = rows[0][1].cost is not None
    if priced:
        table.add_column("cost", justify="right")
    for number, (way, run, _) in enumerate(rows, 1):
        peak = f"[{_colour(way.found.peak, memory)}]{way.found.peak / GIB:.1f}[/]"
        hours = (duration(3600 * run.training_hours), duration(3600 * run.evaluation_hours))
        cost = [f"{run.cost:.0f}" if run.cost >= 10 else f"{run.cost:.2f}"] if run.cost is not None else []
        table.add_row(str(number), way.label, str(way.gpus), peak, *hours, _count(run.tokens), *cost)
    console.print(table)
    console.print(
        "Estimates. tokens: sampled in training, at most. Loading, rewards, checkpoints and traffic between GPUs are "
        "not counted." + (" cost: training and evaluation of all GPUs." if priced else ""),
        soft_wrap=True,
    )
    for number, (way, _, line) in enumerate(rows, 1):
        console.print(
            f"\n{number}  {way.label}, {way.gpus} GPU{'s' if way.gpus > 1 else ''}", style="dim", highlight=False
        )
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _count(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,}"
