"""Peak memory and time of whole training iterations at growing sizes, each case in a process of its own.

A process keeps memory after a case (the allocator's, and what libraries set up on first use). The next case in the same
process would reuse it, which changes its peak by a few per cent.
"""

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.measure import against_first, attempt, held_memory, median_and_range, peak_memory
from lfpo.base.environment import use_threads
from lfpo.config.build import build
from lfpo.config.train import LFPOConfig
from lfpo.models import MaskedDiffusionLM, init_model, load_model, load_tokenizer
from lfpo.models.layouts import LAYOUTS
from lfpo.train.rl import LFPOTrainer

PARTS = ("rollout", "reward", "update")
PROMPT = "What is the sum of these numbers? 12 + 30 = "


@dataclass(frozen=True)
class Iteration:
    """One case.

    timesteps, rollouts: K and N of its one optimiser step; all rollouts are of one prompt.
    update_tokens: tokens in one pass of the update, and in rollouts that run at once.
    vocabulary, width: those of a random model of two layers.
    repeats: iterations to time, after a first one that creates the optimiser's state.
    settings: more keys of a training configuration; those of the sampler under "sampler".
    """

    timesteps: int
    rollouts: int
    update_tokens: int
    vocabulary: int
    width: int
    repeats: int
    threads: int
    settings: dict[str, Any] = field(default_factory=dict)


def measure_iterations(cases: dict[str, Iteration], end: float) -> list[dict[str, Any]]:
    """The row of each case (label -> case), with ratios of time and peak memory to the first one's.

    end: a time.monotonic() after which no case is started.
    """
    rows = [
        {"group": "training iteration", "case": label, **attempt(partial(_in_own_process, case), end)}
        for label, case in cases.items()
    ]
    return against_first(rows)


def _in_own_process(case: Iteration) -> dict[str, Any]:
    # A fork of this process would start with its memory, and a new interpreter would import everything once more.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, context) as processes:
        return processes.submit(measure_iteration, case).result()


def measure_iteration(case: Iteration) -> dict[str, Any]:
    """Rollouts, rewards, one optimiser step of LFPO and one update of the reference, on a random model.

    peak_memory: bytes above what the process holds once everything has been imported and used; weights and optimiser
    count. at_rest: the part of them that is held between two iterations.
    """
    use_threads(case.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _iterations(_trainer(load_model("embedded", device=device), case, rollouts=2), 1)
    before = held_memory(device)
    result: dict[str, Any] = {}

    def work() -> None:
        trainer = _trainer(_random_model(case, device), case, case.rollouts)
        metrics = _iterations(trainer, 1 + case.repeats)[1:]
        result["loss"] = metrics[-1]["loss"]
        result.update(median_and_range([sum(m[f"time/{part}"] for part in PARTS) for m in metrics]))
        result["update_seconds"] = statistics.median(m["time/update"] for m in metrics)
        after = held_memory(device)  # the trainer still holds its weights here
        result["at_rest"] = None if before is None or after is None else after - before

    return {"peak_memory": peak_memory(work, device), **result}


def _random_model(case: Iteration, device: torch.device) -> MaskedDiffusionLM:
    shape = {
        "n_layers": 2,
        "d_model": case.width,
        "n_heads": 4,
        "mlp_hidden_size": 4 * case.width,
        "vocab_size": case.vocabulary,
    }
    ids = {f"{name}_token_id": case.vocabulary - 1 - i for i, name in enumerate(("mask", "eos", "pad"))}
    return init_model({**LAYOUTS["llada-8b"], **shape, **ids}, seed=0, device=device)


def _trainer(model: MaskedDiffusionLM, case: Iteration, rollouts: int) -> LFPOTrainer:
    sampler = {"gen_length": 32, "temperature": 1.0, "steps": 8, **case.settings.get("sampler", {})}
    settings = {
        "output_dir": "unused",
        "prompts_per_iteration": 1,
        "num_generations": rollouts,
        "optimizer_steps_per_iteration": 1,
        "objective": {"name": "lfpo", "timesteps": case.timesteps},
        "update_tokens": case.update_tokens,
        "rollout_tokens": case.update_tokens,
        "log_completions": False,
        "threads": case.threads,
        **case.settings,
        "sampler": sampler,
    }
    args = build(LFPOConfig, settings)
    return LFPOTrainer(
        model, _spaced, args=args, train_dataset=[{"prompt": PROMPT}], tokenizer=load_tokenizer("embedded")
    )


def _spaced(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Rewards evenly spaced from 0 to 1, so that r takes many values."""
    return [i / (len(completions) - 1) for i in range(len(completions))]


def _iterations(trainer: LFPOTrainer, number: int) -> list[dict[str, Any]]:
    return [trainer.run_iteration(i) for i in range(number)]
