"""Peak memory of training iterations against `lfpo plan`."""

import gc
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.autograd.profiler import profile

from gpu.rows import Machine, Row, at_most, measured, not_run
from gpu.shapes import SMALL
from lfpo.config.build import build
from lfpo.config.train import LFPOConfig
from lfpo.core.batch import Update
from lfpo.core.learner import optimizer_step
from lfpo.core.observer import Observer
from lfpo.models import init_model, load_tokenizer
from lfpo.models.layouts import LAYOUTS, with_layers
from lfpo.plan.estimate import LIBRARIES, Estimate
from lfpo.train.rl import LFPOTrainer

TOLERANCE = 0.15
PROMPT = "What is the sum of these numbers? 12 + 30 = "


@dataclass(frozen=True)
class Peaks:
    """Bytes: of the rollouts and of an optimiser step, at their peaks, without what stands before them on a CPU."""

    trainer: LFPOTrainer
    rollouts: int
    update: int


def lora(machine: Machine) -> list[Row]:
    changes = {"lora": {"r": 16}, "dtype": "bfloat16"}
    return against_plan(machine, "LoRA", changes)


def four_bit(machine: Machine) -> list[Row]:
    if importlib.util.find_spec("bitsandbytes") is None:
        return [not_run("4-bit base", "bitsandbytes is not installed")]
    return against_plan(machine, "4-bit base", {"lora": {"r": 16}, "load_in_4bit": True, "dtype": "bfloat16"})


def full(machine: Machine) -> list[Row]:
    """All weights. Without bitsandbytes the moments are float32, and where that does not fit, layers are left out."""
    eight_bit = importlib.util.find_spec("bitsandbytes") is not None
    optim = machine.size("paged_adamw_8bit", "adamw_8bit") if eight_bit else "adamw_torch"
    changes = {"gradient_checkpointing": True, "offload_reference": True, "optim": optim}
    return against_plan(machine, f"all weights, {optim}", changes)


def recipe(prompt_length: int, gen_length: int, **changes: Any) -> LFPOConfig:
    budget = 8 * (prompt_length + gen_length)
    settings = {
        "output_dir": "unused",
        "model": "embedded",
        "prompts_per_iteration": 1,
        "num_generations": 8,
        "optimizer_steps_per_iteration": 1,
        # Replayed states have as many targets as the plan counts; random masks have half of that in the mean.
        "objective": {"name": "lfpo", "states": "stratified", "timesteps": 4, "num_iterations": 1},
        "sampler": {"gen_length": gen_length, "temperature": 1.0, "steps": gen_length // 10},
        "update_tokens": budget,
        "rollout_tokens": budget,
        "threads": 1,
    }
    return build(LFPOConfig, {**settings, **changes})


def against_plan(machine: Machine, label: str, changes: dict[str, Any]) -> list[Row]:
    """Two iterations on random weights of LLaDA-8B's layout, or a small one: each phase's peak against the plan."""
    prompt = PROMPT * machine.size(6, 1)
    tokenizer = load_tokenizer("embedded")
    length = len(tokenizer.encode(prompt, add_special_tokens=False))
    args = recipe(length, machine.size(256, 40), **changes)
    config, layers = _that_fits(machine, args, length)
    plan = Estimate(args, config, prompt_length=length, device=machine.device.type)
    found = peaks(config, args, prompt, machine.device)
    rows = [measured(f"{label}: layers", layers)]
    standing = 0 if machine.gpu else sum(plan.parts[name][2] for name in STANDING if name in plan.parts)
    for phase, bytes_found, planned in (
        ("rollouts", found.rollouts, plan.totals[1]),
        ("update", found.update, plan.totals[2]),
    ):
        expected = planned - LIBRARIES[machine.device.type] - standing
        rows.append(measured(f"{label}: {phase}", bytes_found / 2**30, "GiB"))
        rows.append(at_most(f"{label}: {phase}, off the plan's", abs(bytes_found / expected - 1), TOLERANCE))
    return rows


STANDING = ("weights", "reference", "optimiser")


def _that_fits(machine: Machine, args: LFPOConfig, length: int) -> tuple[dict[str, Any], int]:
    """A config.json whose plan takes at most 90 % of the device, with as many layers as that allows."""
    if not machine.gpu:
        return SMALL, SMALL["n_layers"]
    room = 0.9 * torch.cuda.get_device_properties(0).total_memory
    for layers in (32, 28, 24, 16, 8, 4):
        config = with_layers(LAYOUTS["llada-8b"], layers)
        if Estimate(args, config, prompt_length=length).peak <= room:
            break
    return config, layers


def peaks(config: dict[str, Any], args: LFPOConfig, prompt: str, device: torch.device) -> Peaks:
    """The peaks of the second iteration's phases; the first creates the optimiser's state."""
    model = init_model(config, seed=0, device=device, dtype=getattr(torch, args.dtype))
    with mock.patch("lfpo.train.preflight.check_disk", return_value=(0.0, 0.0)):  # nothing is saved
        trainer = LFPOTrainer(
            model, spaced, args=args, train_dataset=[{"prompt": prompt}], tokenizer=load_tokenizer("embedded")
        )
    batches: list[Any] = []

    def step() -> None:
        signal = trainer.objective.signal(batches[0].reward_R, batches[0].group_R).to(device)
        only_step = Update(0, 0, torch.arange(len(signal)), number=0, of=1)
        optimizer_step(trainer.learner, trainer.objective, batches[0], signal, only_step, Observer())

    def sample() -> None:
        batches[:] = [trainer.algorithm.sample_and_score(0, Observer())]

    sample()
    step()
    return Peaks(trainer, peak(sample, device), peak(step, device))


def peak(work: Callable[[], object], device: torch.device) -> int:
    """On a GPU the most bytes that torch's allocator held; on a CPU the most that `work` added to what it held."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated()
    gc.collect()  # what an earlier profile saw allocated must not be freed in this one
    with profile(use_cpu=True, profile_memory=True) as trace:
        work()
    assert trace.kineto_results is not None
    events = [e for e in trace.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def spaced(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Rewards evenly spaced from 0 to 1."""
    return [i / len(prompts) for i in range(len(prompts))]
