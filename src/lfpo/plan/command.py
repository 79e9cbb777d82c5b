"""`lfpo plan`: memory of a recipe on each GPU, and the ways to run it that fit, with command, hours and cost."""

import functools
from dataclasses import asdict, replace
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Column, Table

from lfpo.base.measure import matmul_peak
from lfpo.base.terminal import Terminal, fitted
from lfpo.config.errors import UserError
from lfpo.config.files import user_path, write_json, writing
from lfpo.config.gpus import GPUS, REACHED, fastest
from lfpo.config.json import Json
from lfpo.config.length import UNSET, in_words
from lfpo.config.plan import PlanConfig
from lfpo.config.train import LFPOConfig
from lfpo.models.narrow_products import matmul
from lfpo.models.tensor_files import GIB
from lfpo.plan.estimate import PHASES, Estimate
from lfpo.plan.model import model_config
from lfpo.plan.prompts import longest_prompt, room_for_prompt, training_rows
from lfpo.plan.times import EFFICIENCY, WholeRun, duration, seconds, whole_run
from lfpo.plan.ways import Plan, Way, command, ways

ASSUMED_PROMPT = 256  # tokens
ASSUMED_MEMORY = 80.0  # GiB, of an H100


def run_plan(config: PlanConfig, args: LFPOConfig, *, recipe: str | None, overrides: Json) -> None:
    """Print the plan and the ways that fit, each with its command; write them to `config.output`.

    recipe, overrides: the recipe's name and the keys given beside it, for the commands. Raises UserError if nothing
        fits.
    """
    console, measured = Terminal(), config.prompt_length or longest_prompt(args)
    if (measured or 1) > (room := room_for_prompt(args)):
        raise UserError(
            f"a prompt of {measured or 1} tokens does not fit the model's context, where a completion leaves "
            f"{max(room, 0)}; lower sampler.gen_length or prompt_length, or set filter_overlong_prompts"
        )
    plan = _planner(config, args, measured or ASSUMED_PROMPT)
    estimate = plan(args, gpus=config.gpus)
    (memory, source), (rates, assumption) = _memory(config), _rates(config)

    def rate(estimate: Estimate) -> float:
        return rates["bfloat16" if estimate.autocast else estimate.args.dtype]

    taken = seconds(estimate, rate(estimate))
    _print_memory(estimate, plan, memory, source, "" if measured else ", assumed; set --prompt_length", console)
    _print_time(estimate, taken, assumption, console)
    console.print(f"A run: {in_words(estimate.run_length, args.num_train_epochs)}.", soft_wrap=True)
    disk = ", ".join(f"{name} {size / GIB:.3g} GiB" for name, size in estimate.disk.items())
    console.print(f"Disk: at least {sum(estimate.disk.values()) / GIB:.3g} GiB: {disk}.", soft_wrap=True)
    rows = []
    for way in ways(plan, args, config.gpus, memory):
        line = command(recipe, overrides, way.changes, way.estimate.gpus, config.gpus_per_machine)
        rows.append((way, whole_run(way.estimate, rate(way.estimate), config.price_per_hour), line))
    if rows:
        _print_ways(rows, memory, console)
    if config.output:
        sizes = estimate.sizes
        result = {
            "parameters": {"total": sizes.total, "active": sizes.active + sizes.outside, "trained": estimate.trained},
            "phases": PHASES,
            "bytes": estimate.parts,
            "total": estimate.totals,
            "host": estimate.host,
            "disk": estimate.disk,
            "gpu_memory": memory,
            "fits": estimate.peak <= memory,
            "seconds": dict(zip(("rollout", "update", "iteration"), taken, strict=True)),
            "assumption": assumption,
            "ways": [
                {
                    "way": way.label,
                    "gpus": way.estimate.gpus,
                    "command": line,
                    "bytes": way.estimate.peak,
                    **asdict(run),
                }
                for way, run, line in rows
            ],
        }
        path = user_path(config.output)
        with writing(path, "; give --output the name of a new file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, result)
    if not rows:
        raise UserError(
            f"no way to run {recipe or 'this'} fits {memory / GIB:.3g} GiB a GPU; take more or larger GPUs (--gpus, "
            "--gpu_memory), or a smaller model"
        )


def out_of_memory(error: BaseException, args: Any) -> UserError | None:
    """The message for an error that is a lack of memory; None for any other error. args: the run's configuration."""
    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "DefaultCPUAllocator" not in text:
        return None
    reason = text.splitlines()[0] if text else "an allocation failed"
    lower, see = f"lower update_tokens (now {args.update_tokens})", ""
    if isinstance(args, LFPOConfig):
        lower += f" or rollout_tokens (now {args.rollout_tokens})"
        see = "; `lfpo plan` with the same keys says what takes the memory"
    return UserError(
        f"out of memory ({reason}); {lower}, set gradient_checkpointing or lora, or take more GPUs with fsdp, then "
        f"--resume{see}"
    )


def _planner(config: PlanConfig, args: LFPOConfig, length: int) -> Plan:
    """length: tokens of a prompt."""
    by_epochs = args.max_steps == UNSET and args.num_train_epochs
    rows = training_rows(args) if by_epochs else 0
    return functools.partial(
        Estimate, config=model_config(args.model), prompt_length=length, device=config.device, rows=rows
    )


def _memory(config: PlanConfig) -> tuple[float, str]:
    """Bytes of one GPU, and where the number is from."""
    if config.gpu_memory is not None:
        return config.gpu_memory * GIB, "as stated"
    if config.gpu is not None:
        return GPUS[config.gpu].memory * GIB, config.gpu
    if config.device == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory), torch.cuda.get_device_name(0)
    return ASSUMED_MEMORY * GIB, "assumed; set --gpu or --gpu_memory"


def _rates(config: PlanConfig) -> tuple[dict[str, float], str]:
    """FLOP/s of one GPU for each dtype, and a sentence on where they are from."""
    another = config.gpu is not None or config.gpu_memory is not None  # than this machine's
    here = config.device == "cpu" or (torch.cuda.is_available() and not another)
    name = config.gpu or fastest(config.gpu_memory or ASSUMED_MEMORY)
    rates, origins = {}, []
    for dtype, stated, peak in (
        ("bfloat16", config.tflops, GPUS[name].bfloat16),
        ("float32", config.tflops_float32, GPUS[name].float32),
    ):
        rates[dtype] = 1e12 * (stated or REACHED * peak)
        origin = "stated" if stated else f"{REACHED:.0%} of the peak of {name}"
        if here and not stated:
            rates[dtype] = EFFICIENCY * matmul_peak(torch.device(config.device), getattr(torch, dtype), matmul)
            origin = f"{EFFICIENCY:.0%} of one large product, measured here"
        origins.append(f"{rates[dtype] / 1e12:.3g} TFLOP/s in {dtype} ({origin})")
    return rates, ", ".join(origins)


def readable(parameters: int) -> str:
    """A number of parameters in billions with two decimals, or below a billion in millions with three digits."""
    return f"{parameters / 1e9:.2f} B" if parameters >= 999.5e6 else f"{parameters / 1e6:.3g} M"


def _print_memory(estimate: Estimate, plan: Plan, memory: float, source: str, assumed: str, console: Console) -> None:
    """memory: bytes of one GPU. source: where that number is from. assumed: the same of the prompt's length."""
    args, sizes = estimate.args, estimate.sizes
    active = f", {readable(sizes.active + sizes.outside)} active" if sizes.experts else ""
    console.print(
        f"{args.model}: {readable(sizes.total)} parameters{active}, {readable(estimate.trained)} trained "
        f"({'LoRA' if args.lora else 'all weights'}), {estimate.gpus} GPU{'s' if estimate.gpus > 1 else ''}"
        f"{', split by FSDP2' if args.fsdp else ''}",
        soft_wrap=True,
    )
    table = Table("GiB on each GPU", *(Column(phase, justify="right") for phase in PHASES), box=box.SIMPLE)
    for name, values in estimate.parts.items():
        table.add_row(name, *(f"{v / GIB:.2f}" if v else "" for v in values))
        if name == "activations of a pass":
            opposite = plan(replace(args, gradient_checkpointing=not args.gradient_checkpointing), gpus=estimate.gpus)
            other = "without" if args.gradient_checkpointing else "with"
            table.add_row(f"  {other} checkpointing", "", "", f"({opposite.parts[name][2] / GIB:.2f})", style="dim")
    table.add_section()
    table.add_row("total", *(f"{v / GIB:.2f}" for v in estimate.totals), style="bold")
    table.add_row(f"of {memory / GIB:.3g} GiB ({source})", *(f"{v / memory:.0%}" for v in estimate.totals))
    console.print(fitted(table, console))
    if estimate.host:
        held = ", ".join(f"{name} {size / GIB:.1f}" for name, size in estimate.host.items())
        copied = ""
        if estimate.transfers:
            copied = f"; the reference's layers are copied {estimate.transfers} times an iteration"
        console.print(f"GiB in CPU memory, for each rank: {held}{copied}.", soft_wrap=True)
    clean_copies = ""
    if estimate.view_tokens > estimate.length:
        clean_copies = f", each run with clean copies, {estimate.view_tokens} tokens"
    console.print(
        f"A pass of the update: {estimate.rows} views of {estimate.length} tokens "
        f"(prompt {estimate.prompt_length}{assumed}){clean_copies}.",
        "It fits." if estimate.peak <= memory else "It does not fit.",
        soft_wrap=True,
    )


def _print_time(estimate: Estimate, taken: tuple[float, float, float], assumption: str, console: Console) -> None:
    """taken: seconds of an iteration's rollouts, of its update, and of the iteration. assumption: the rates that these
    numbers rest on."""
    engine, where = estimate.args.engine, ""
    fullest = f"; the fullest rank computes {estimate.fullest:.2f} times the mean" if estimate.gpus > 1 else ""
    rollouts, update, iteration = map(duration, taken)
    if engine.name == "ray":
        where = f"\nRollouts run on {engine.workers} Ray workers, each on a GPU like these, "
        where += f"{'beside' if engine.max_staleness else 'before'} the update: {iteration} an iteration."
    console.print(
        f"An iteration: rollouts {estimate.rollout_flops / 1e15:.3g} PFLOP, at least {rollouts} ({estimate.forwards} "
        f"forwards a rollout; early stopping takes fewer); update {estimate.update_flops / 1e15:.3g} PFLOP, at least "
        f"{update} "
        f"({estimate.work.views:g} views a rollout{fullest}).{where}\nAt {assumption}.",
        soft_wrap=True,
    )


def _print_ways(rows: list[tuple[Way, WholeRun, str]], memory: float, console: Console) -> None:
    """A table of the ways that fit, with what a whole run takes, and under it the command of each."""
    table = Table(title=f"Whole runs that fit {memory / GIB:.3g} GiB a GPU", box=box.SIMPLE, title_justify="left")
    priced = rows[0][1].cost is not None
    for name in ("", "way", "GPUs", "peak GiB", "training", "evaluation", "tokens", *(["cost"] if priced else [])):
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=name != "way")
    for number, (way, run, _) in enumerate(rows, 1):
        hours = (duration(3600 * run.training_hours), duration(3600 * run.evaluation_hours))
        tokens = f"{run.tokens / 1e6:.1f} M" if run.tokens >= 1e5 else f"{run.tokens:,}"
        cost = [] if run.cost is None else [f"{run.cost:.{0 if run.cost >= 10 else 2}f}"]
        peak = f"{way.estimate.peak / GIB:.1f}"
        table.add_row(str(number), way.label, str(way.estimate.gpus), peak, *hours, tokens, *cost)
    console.print(fitted(table, console))
    console.print(
        "Times and costs are at least these: loading, rewards, checkpoints and traffic between GPUs are not counted. "
        "tokens: sampled in training, at most." + (" cost: training and evaluation of all GPUs." if priced else ""),
        soft_wrap=True,
    )
    for number, (way, _, line) in enumerate(rows, 1):
        gpus = f"{way.estimate.gpus} GPU{'s' if way.estimate.gpus > 1 else ''}"
        console.print(f"\n{number}  {way.label}, {gpus}", style="dim", highlight=False)
        console.print(line, soft_wrap=True, highlight=False)
