"""What a whole run takes in a given way: hours, tokens, cost, and the command that starts it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lfpo.base.config import flow_text, merge
from lfpo.train.config import LFPOConfig
from lfpo.train.plan.estimate import Estimate
from lfpo.train.plan.ways import Way, changed

EFFICIENCY = 0.5  # speed of a whole iteration, relative to one large matrix product


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
