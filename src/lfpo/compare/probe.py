"""Two tiny iterations of a cell: a fingerprint of what the code computes, and the FLOPs that the cell will take.

A hash of the source would change with every comment and refactoring, and then hours of finished cells would be lost.
The fingerprint is of results instead: what two iterations of two prompts with a fixed seed and rate yield, and what the
trained model then decodes. Code that computes the same has the same fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lfpo.base.config import to_dict
from lfpo.compare.settings import BASE, Cell, CompareConfig, frontier_sampler
from lfpo.eval.evaluate import evaluate
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.prompts.tasks import VALIDATION, Task, get_task
from lfpo.rollout.engine import as_it_is
from lfpo.rollout.sampler import SamplerConfig
from lfpo.train.config import LFPOConfig
from lfpo.train.flops import rollout_flops
from lfpo.train.rl import LFPOTrainer

PROMPTS, STEPS, ROWS = 2, 2, 4


@dataclass(frozen=True)
class Probe:
    """fingerprint: of the code's results. flops: of one iteration of the cell's size; of the untrained model's probe
    those of one evaluation under the curve's sampler and under all thresholds, for each problem. Decoding by thresholds
    gets cheaper as the model learns.
    """

    fingerprint: str
    flops: float
    frontier: float = 0.0


class Probes:
    """Probes of a comparison's cells, each made once; they do not depend on learning rate and seed."""

    def __init__(self, config: CompareConfig):
        self.config = config
        self.found: dict[str, Probe] = {}

    def of(self, settings: LFPOConfig, cell: Cell) -> Probe:
        """The probe of a cell, whose training configuration is `settings`. Other problems are no other code."""
        assert settings.task is not None
        if isinstance(task := get_task(settings.task), Task) and task.validating:
            settings = dataclasses.replace(settings, task=settings.task.removesuffix(VALIDATION))
        trained = cell.objective != BASE
        ignored = {"learning_rate", "seed", "output_dir", "eval_steps"}
        asked = {k: v for k, v in to_dict(settings).items() if k not in ignored}
        key = json.dumps(asked if trained else [settings.model, settings.task, asked["eval_samplers"]], sort_keys=True)
        if key not in self.found:
            self.found[key] = probe(self.config, settings, trained)
        return self.found[key]


def probe(config: CompareConfig, settings: LFPOConfig, trained: bool) -> Probe:
    """Run the probe of one cell, in memory."""
    sampler = settings.eval_samplers[config.curve_sampler]
    if not trained:
        model, tokenizer = load_model(settings.model), load_tokenizer(settings.model)
        curve, tokens = _decode(model, tokenizer, settings, [sampler])
        sweep = [frontier_sampler(sampler, t) for t in config.thresholds]
        frontier, swept = _decode(model, tokenizer, settings, sweep)
        return Probe(_digest([tokens, swept]), curve, frontier)
    small = dataclasses.replace(
        settings,
        prompts_per_iteration=PROMPTS,
        max_steps=STEPS,
        optimizer_steps_per_iteration=min(2, settings.optimizer_steps_per_iteration),
        learning_rate=1e-4,
        eval_steps=0,
        seed=0,
        log_completions=False,
    )
    trainer, seen, flops = LFPOTrainer(args=small), [], 0.0
    for step in range(STEPS):
        metrics = trainer.iterate(step)
        flops = metrics["flops"]
        # The loss is left out: of policy gradients it is rounding noise around 0.
        seen.append([f"{metrics[k]:.3g}" for k in ("grad_norm", "reward", "nfe")] + [f"{flops:.6g}"])
        seen.append([f"{k} {v:.3f}" for k, v in sorted(metrics.items()) if k.startswith("p_target")])
    _, tokens = _decode(trainer.export(), trainer.tokenizer, settings, [sampler])
    return Probe(_digest([seen, tokens]), flops / STEPS / PROMPTS * settings.prompts_per_iteration)


def _digest(seen: Any) -> str:
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


@torch.no_grad()
def _decode(
    model: MaskedDiffusionLM, tokenizer: Any, settings: LFPOConfig, samplers: Sequence[SamplerConfig]
) -> tuple[float, list[Any]]:
    """FLOPs a problem and tokens of a few test problems under some samplers."""
    assert settings.task is not None
    task, flops, tokens = get_task(settings.task), 0.0, []
    for sampler in samplers:
        sampler = sampler.for_length(task.gen_length, model.block_length)
        found = evaluate(as_it_is(model), model, tokenizer, task.test_rows(ROWS), task.correct_all, sampler)
        flops += rollout_flops(model, found.trajectory) / ROWS
        tokens.append(found.trajectory.tokens.tolist())
    return flops, tokens
