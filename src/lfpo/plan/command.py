"""`lfpo plan`: memory of a recipe on each GPU, and the ways to run it that fit, with command, hours and cost."""

import contextlib
import functools
import json
import math
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from lfpo.base.measure import matmul_peak
from lfpo.base.terminal import Terminal, fitted
from lfpo.config.build import flattened, flow_text, merge
from lfpo.config.errors import UserError
from lfpo.config.files import replace_file, user_path, writing
from lfpo.config.gpus import GPUS, REACHED, fastest
from lfpo.config.json import Json
from lfpo.config.length import UNSET, described
from lfpo.config.models import LoraSettings
from lfpo.config.plan import PlanConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.encoding import encode_prompt
from lfpo.models.loading import SHIPPED, load_tokenizer
from lfpo.models.narrow_products import matmul
from lfpo.models.tensor_files import GIB
from lfpo.plan.estimate import PHASES, Estimate
from lfpo.plan.model import model_config, model_shape
from lfpo.prompts.dataset import read_rows
from lfpo.prompts.sources import PromptSource
from lfpo.prompts.tasks import DataTask, get_task

ASSUMED_PROMPT = 256  # tokens
ASSUMED_MEMORY = 80.0  # GiB, of an H100
# Estimate(args, gpus=...) for a given model, prompt length and device.
Plan = Callable[..., Estimate]
Changes = Json

MORE = (2, 4, 8, 16)  # numbers of GPUs that are tried besides the stated one
EFFICIENCY = 0.5  # speed of a whole iteration, relative to one large matrix product
# A layer's forward launches at least 30 kernels, and a launch takes 5 microseconds: a small model waits for them. An
# iteration of a model of 135 M parameters with 20 TFLOP took 0.6 s on an H200, where its products alone take 0.05.
LAYER_SECONDS = 30 * 5e-6
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
    while estimate.peak > (SPARE * memory if tokens > ENOUGH else memory) and tokens // 2 >= estimate.length:
        tokens //= 2
        fewer = {name: min(getattr(args, name), tokens) for name in ("update_tokens", "rollout_tokens")}
        estimate = plan(replace(args, **fewer), gpus=gpus)
        if estimate.peak <= memory:
            best = Way(label, changes | fewer, estimate)
    return best


def seconds(estimate: Estimate, flop_rate: float) -> tuple[float, float, float]:
    """Seconds of an iteration's rollouts, of its update, and of both, at least, on GPUs of `flop_rate` FLOP/s each: the
    time of the arithmetic, or of launching the kernels where that is longer. An optimiser step takes as long as on its
    fullest rank. Ray workers sample on GPUs like these beside them, with max_staleness while the trainer updates."""
    workers = _worker_gpus(estimate.args)
    rollout = estimate.rollout_flops / flop_rate / (workers or estimate.gpus)
    rollout = max(rollout, _launching(estimate, estimate.rollout_layers))
    update = estimate.update_flops / flop_rate / estimate.gpus * estimate.fullest
    update = max(update, _launching(estimate, estimate.update_layers))
    beside = bool(workers and estimate.args.engine.max_staleness)
    return rollout, update, max(rollout, update) if beside else rollout + update


def _launching(estimate: Estimate, layers: int) -> float:
    """Seconds that the kernels of so many layers take to launch. Not counted for a compiled forward, which launches
    fewer, and on a CPU, which calls them directly."""
    return 0.0 if estimate.device == "cpu" or estimate.args.rollout_compile else layers * LAYER_SECONDS


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


def whole_run(estimate: Estimate, flop_rate: float, price_per_hour: float | None) -> WholeRun:
    """A run from its first to its last iteration, at `flop_rate` FLOP/s of one GPU and a price of one GPU's hour. All
    forwards that the schedules allow are counted; loading, rewards, checkpoints and traffic between GPUs are not, so a
    run that does not stop its rollouts early takes this long at least."""
    args = estimate.args
    training = args.max_steps * seconds(estimate, flop_rate)[2] / 3600
    evaluation = estimate.evaluation_flops / flop_rate / estimate.gpus
    evaluation = max(evaluation, _launching(estimate, estimate.evaluation_layers)) / 3600
    gpus = estimate.gpus + _worker_gpus(args)
    cost = None if price_per_hour is None else (training + evaluation) * gpus * price_per_hour
    return WholeRun(training, evaluation, args.max_steps * estimate.rollouts * estimate.completion, cost)


def duration(seconds: float) -> str:
    """Two digits or so, in the unit that suits."""
    if seconds < 99:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3570 else f"{seconds / 3600:.1f} h"


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


def run_plan(config: PlanConfig, args: LFPOConfig, *, recipe: str | None, overrides: Json) -> None:
    """Print the plan and the ways that fit, each with its command; write them to `config.output`.

    recipe, overrides: the recipe's name and the keys given beside it, for the commands. Raises UserError if nothing
        fits.
    """
    console, measured = Terminal(), config.prompt_length or longest_prompt(args)
    if (measured or 1) > (room := _room(args)):
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
    console.print(f"A run: {described(estimate.run_length, args)}.", soft_wrap=True)
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
            replace_file(path, json.dumps(result, indent=1) + "\n")
    if not rows:
        raise UserError(
            f"no way to run {recipe or 'this'} fits {memory / GIB:.3g} GiB a GPU; take more or larger GPUs (--gpus, "
            "--gpu_memory), or a smaller model"
        )


def out_of_memory(error: BaseException, args: Any, gpus: int) -> UserError | None:
    """The message for an error that is a lack of memory, in `lfpo train` with the plan's numbers; None for any other
    error. args: the run's configuration."""
    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "DefaultCPUAllocator" not in text:
        return None
    reason = text.splitlines()[0] if text else "an allocation failed"
    counted, lower = "", f"lower update_tokens (now {args.update_tokens})"
    if isinstance(args, LFPOConfig):
        lower += f" or rollout_tokens (now {args.rollout_tokens})"
        with contextlib.suppress(UserError):  # a model object without a config.json that can be found
            config = PlanConfig(gpus=gpus, device="cuda" if torch.cuda.is_available() else "cpu")
            estimate = _planner(config, args, longest_prompt(args) or ASSUMED_PROMPT)(args, gpus=gpus)
            phase = estimate.totals.index(estimate.peak)
            largest = sorted(estimate.parts, key=lambda name: -estimate.parts[name][phase])[:3]
            listed = ", ".join(f"{name} {estimate.parts[name][phase] / GIB:.2f}" for name in largest)
            counted = (
                f"`lfpo plan` counts {estimate.peak / GIB:.2f} GiB in the {PHASES[phase]} phase, most of it {listed}; "
            )
    return UserError(
        f"out of memory ({reason}); {counted}{lower}, set gradient_checkpointing or lora, or take more GPUs with fsdp, "
        "then --resume"
    )


def _planner(config: PlanConfig, args: LFPOConfig, length: int) -> Plan:
    """length: tokens of a prompt."""
    by_epochs = args.max_steps == UNSET and args.num_train_epochs
    rows = training_rows(args) if by_epochs else 0
    return functools.partial(
        Estimate, config=model_config(args.model), prompt_length=length, device=config.device, rows=rows
    )


def training_rows(args: LFPOConfig) -> int:
    """Distinct training rows of a recipe, 0 where a task makes them without end. With filter_overlong_prompts those
    that fit, if the model is a folder with its tokenizer."""
    task = None if args.task is None else get_task(args.task)
    rows = [record.values for record in read_rows(args, "train")] if task is None else task.train_rows()
    tokenizer = _tokenizer(args) if args.filter_overlong_prompts else None
    if tokenizer is None:
        return len(rows)
    most = _room(args)
    return sum(len(encode_prompt(tokenizer, row["prompt"])) <= most for row in rows)


def longest_prompt(args: LFPOConfig) -> int | None:
    """Tokens of the longest prompt in `data_file`, or of the first iteration's that a task makes; with
    filter_overlong_prompts of the longest that fits. None for others, and where the model is not a folder or has no
    tokenizer: weights and data are not downloaded for a plan."""
    task = None if args.task is None else get_task(args.task)
    if isinstance(task, DataTask) or (task is None and args.data_file is None) or (found := _tokenizer(args)) is None:
        return None
    if task is None:
        lengths = [len(encode_prompt(found, record["prompt"], record.where)) for record in read_rows(args, "train")]
    else:
        rows = (task.row("train", i, args.seed) for i in range(args.prompts_per_iteration))
        lengths = [len(encode_prompt(found, row["prompt"])) for row in rows]
    most = _room(args) if args.filter_overlong_prompts else math.inf
    return max((length for length in lengths if length <= most), default=None)


def _room(args: LFPOConfig) -> int:
    """Tokens of the longest prompt that fits the model's context beside a completion."""
    model = model_shape(model_config(args.model))[1]
    default = (PromptSource if args.task is None else get_task(args.task)).gen_length
    return model.max_length - args.sampler.fitted("sampler", default, model.block_length).gen_length


def _tokenizer(args: LFPOConfig) -> object:
    """The tokenizer of the model's folder; None without one: a folder with config.json only is enough for a plan."""
    folder = SHIPPED.get(args.model, user_path(args.model))
    if not any(folder.glob("*.json")):
        return None
    try:
        return load_tokenizer(folder)
    except UserError:
        return None


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


def _coloured(size: float, memory: float, form: str) -> Text:
    """Bytes in GiB, in a colour that says whether they fit."""
    style = "red" if size > memory else "yellow" if size > 0.9 * memory else "green"
    return Text(f"{size / GIB:{form}}", style=style)


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
    table.add_row(Text("total", style="bold"), *(_coloured(v, memory, ".2f") for v in estimate.totals))
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
        "It fits." if estimate.peak <= memory else Text("It does not fit.", style="bold red"),
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
        peak = _coloured(way.estimate.peak, memory, ".1f")
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
