"""`lfpo plan`: memory of a recipe on each GPU, and the ways to run it that fit, with command, hours and cost."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lfpo.base.errors import UserError
from lfpo.base.files import replace_file
from lfpo.base.measure import matmul_peak
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import PHASES, estimate
from lfpo.train.plan.settings import PlanConfig
from lfpo.train.plan.shapes import model_config
from lfpo.train.plan.tables import GIB, print_memory, print_time, print_ways
from lfpo.train.plan.ways import EFFICIENCY, Plan, Way, changed, command, seconds, ways, whole_run

ASSUMED_MEMORY, ASSUMED_TFLOPS, ASSUMED_TFLOPS_FLOAT32 = 80.0, 400.0, 30.0  # an H100 at about half of its peaks


def run_plan(
    config: PlanConfig,
    args: LFPOConfig,
    *,
    recipe: str | None = None,
    given: dict[str, Any] | None = None,
    console: Console | None = None,
) -> list[Way]:
    """Print the plan and the ways that fit, each with its command; write them to `config.output`; return the ways.

    recipe, given: the recipe's name and the keys given beside it, for the commands. Raises UserError if nothing fits.
    """
    console = console or Console()
    plan = _planner(config, args)
    found = plan(args, gpus=config.gpus)
    memory, source = _memory(config)
    rates, assumption = _rates(config)
    opposite = replace(args, gradient_checkpointing=not args.gradient_checkpointing)
    print_memory(
        found,
        args,
        config,
        memory=memory,
        source=source,
        other_activations=plan(opposite, gpus=config.gpus).parts["activations of a pass"][2],
        console=console,
    )

    def rate(dtype: str) -> float:
        return rates["bfloat16" if args.bf16 and config.device == "cuda" else dtype]

    taken = seconds(found, args, config.gpus, rate(args.dtype))
    print_time(found, args, taken, assumption, console)
    fitting = ways(plan, args, config.gpus, memory)
    rows = []
    for way in fitting:
        run = whole_run(way, args, rate(changed(args, way.changes).dtype), config.price_per_hour)
        rows.append((way, run, command(recipe, given or {}, way, config.gpus_per_machine)))
    if config.output:
        result = {
            "parameters": {"total": found.sizes.total, "active": found.sizes.total_active, "trained": found.trained},
            "phases": PHASES,
            "bytes": found.parts,
            "total": found.totals,
            "host": found.host,
            "gpu_memory": memory,
            "fits": found.peak <= memory,
            "seconds": {"rollout": taken[0], "update": taken[1], "iteration": taken[2]},
            "assumption": assumption,
            "ways": [
                {"way": way.label, "gpus": way.gpus, "command": line, "bytes": way.found.peak, **asdict(run)}
                for way, run, line in rows
            ],
        }
        path = Path(config.output)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(result, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"output {path}: cannot be written ({error.strerror}); give the name of a new file"
            ) from error
    if not rows:
        raise UserError(
            f"no way to run {recipe or 'this'} fits {memory / GIB:.3g} GiB a GPU; take more or larger GPUs (--gpus, "
            "--gpu_memory), or a smaller model"
        )
    print_ways(rows, memory, console)
    return fitting


def out_of_memory(error: BaseException, args: Any, gpus: int) -> UserError | None:
    """The message for an error that is a lack of memory, in `lfpo train` with the plan's numbers; None for any other
    error. args: the run's configuration."""
    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "DefaultCPUAllocator" not in text:
        return None
    reason = text.splitlines()[0] if text else "an allocation failed"
    if not isinstance(args, LFPOConfig):
        return UserError(
            f"out of memory ({reason}); lower update_tokens (now {args.update_tokens}), set gradient_checkpointing or "
            "lora, or take more GPUs with fsdp, then --resume"
        )
    config = PlanConfig(gpus=gpus, device="cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = _planner(config, args)(args, gpus=gpus)
    except UserError:  # a model object without a config.json that can be found
        return UserError(f"out of memory ({reason}); see `lfpo plan`, and lower update_tokens or rollout_tokens")
    phase, peak = max(zip(PHASES, found.totals, strict=True), key=lambda pair: pair[1])
    column = PHASES.index(phase)
    largest = sorted(found.parts, key=lambda name: -found.parts[name][column])[:3]
    counted = ", ".join(f"{name} {found.parts[name][column] / GIB:.2f}" for name in largest)
    return UserError(
        f"out of memory ({reason}); `lfpo plan` counts {peak / GIB:.2f} GiB in the {phase} phase, most of it "
        f"{counted}; lower update_tokens (now {args.update_tokens}) or rollout_tokens (now {args.rollout_tokens}), set "
        "gradient_checkpointing or lora, or take more GPUs with fsdp, then --resume"
    )


def _planner(config: PlanConfig, args: LFPOConfig) -> Plan:
    return functools.partial(
        estimate, config=model_config(args.model), prompt_length=config.prompt_length, device=config.device
    )


def _memory(config: PlanConfig) -> tuple[float, str]:
    """Bytes of one GPU, and where the number is from."""
    if config.gpu_memory is not None:
        return config.gpu_memory * GIB, "as stated"
    if config.device == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory), torch.cuda.get_device_name(0)
    return ASSUMED_MEMORY * GIB, "assumed; set --gpu_memory"


def _rates(config: PlanConfig) -> tuple[dict[str, float], str]:
    """FLOP/s of one GPU for each dtype, and a sentence on where they are from."""
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
