"""One cell of a comparison, in a process of its own: train or resume, evaluate, then write result.json."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lfpo.base.config import build, load_yaml
from lfpo.base.environment import describe_environment, versions
from lfpo.base.errors import UserError
from lfpo.base.files import read_json, replace_file
from lfpo.eval.evaluate import EvalResult, evaluate
from lfpo.eval.straightness import straightness
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.prompts.tasks import DataTask, Row, Task, get_task
from lfpo.rollout.sampler import SamplerConfig
from lfpo.runs.directory import Run
from lfpo.train.config import LFPOConfig

STRAIGHT_PROBLEMS = 50
VALIDATION_SEED = 7919


def main(folder: Path) -> None:
    """Run the cell described by `folder/cell.json` and `folder/config.yaml`."""
    cell = read_json(folder / "cell.json")
    config = build(LFPOConfig, load_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
    if cell["train"]:
        from lfpo.train.rl import LFPOTrainer

        sampler = {cell["sampler"]: config.eval_samplers[cell["sampler"]]}
        during = dataclasses.replace(config, eval_samplers=sampler, eval_size=cell["curve_problems"])
        trainer = LFPOTrainer(args=during)
        trainer.train(resume=(Path(config.output_dir) / "config.yaml").exists())
        model, tokenizer = trainer.model, trainer.tokenizer
        metrics = Run(Path(config.output_dir)).read_metrics()
    else:
        torch.set_num_threads(config.threads or torch.get_num_threads())
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, tokenizer, metrics = load_model(config.model, device=device), load_tokenizer(config.model), []
    result = {**cell, "curve": curve(metrics), **measure(model, tokenizer, config)}
    result["validation_accuracy"] = validate(model, tokenizer, config, cell)
    result |= {"environment": describe_environment(), "versions": versions()}
    replace_file(folder / "result.json", json.dumps(result, indent=1) + "\n")


def measure(model: MaskedDiffusionLM, tokenizer: Any, config: LFPOConfig) -> dict[str, Any]:
    """Held-out results under every eval sampler, problem by problem, and straightness."""
    task = _task(config)
    few = task.test_rows(config.eval_size)[:STRAIGHT_PROBLEMS]
    greedy = SamplerConfig(block_length=config.sampler.block_length)
    trajectory = _evaluate(model, tokenizer, config, greedy, few).trajectory
    return {
        "task": task.name,
        "eval": {name: under_sampler(model, tokenizer, config, s) for name, s in config.eval_samplers.items()},
        "straightness": straightness(model, trajectory, update_tokens=config.update_tokens),
    }


def under_sampler(
    model: MaskedDiffusionLM, tokenizer: Any, config: LFPOConfig, sampler: SamplerConfig
) -> dict[str, Any]:
    """Held-out results under one sampler, problem by problem. Raises UserError when a verdict is missing."""
    rows = _task(config).test_rows(config.eval_size)
    result = _evaluate(model, tokenizer, config, sampler, rows, seed=config.seed)
    if result.not_judged:
        raise UserError(
            f"task {config.task!r}: {result.not_judged} of {len(result.correct)} completions cannot be judged on this "
            "machine, and a comparison needs all of them; `lfpo doctor` says what is missing"
        )
    return {
        "accuracy": result.accuracy,
        "correct": [int(c is True) for c in result.correct],
        "steps": result.trajectory.scheduled_steps.tolist(),
        "nfe": result.trajectory.nfe.tolist(),
        "seconds": result.seconds_per_problem,
    }


def validate(model: MaskedDiffusionLM, tokenizer: Any, config: LFPOConfig, cell: dict[str, Any]) -> float:
    """Accuracy under the comparison's main sampler on training problems drawn with another seed."""
    rows = [_task(config).row("train", i, seed=VALIDATION_SEED) for i in range(cell["validation"])]
    return _evaluate(model, tokenizer, config, config.eval_samplers[cell["sampler"]], rows).accuracy or 0.0


def _task(config: LFPOConfig) -> Task | DataTask:
    assert config.task is not None  # checked before any cell runs
    return get_task(config.task)


def _evaluate(
    model: MaskedDiffusionLM,
    tokenizer: Any,
    config: LFPOConfig,
    sampler: SamplerConfig,
    rows: Sequence[Row],
    seed: int = 0,
) -> EvalResult:
    task, tokens = _task(config), config.rollout_tokens
    sampler = sampler.for_length(task.gen_length, model.block_length)
    return evaluate(model, tokenizer, rows, task.correct_all, sampler, seed=seed, rollout_tokens=tokens)


def curve(metrics: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Accuracy of each evaluation during training, with the training seconds and FLOPs up to that step."""
    points, seconds, flops = [], 0.0, 0.0
    for m in metrics:
        seconds, flops = m.get("time/total", seconds), m.get("flops", flops)
        scores = {k.split("/")[1]: v for k, v in m.items() if k.startswith("eval/") and k.endswith("/accuracy")}
        if scores:
            points.append({"step": m["step"], "seconds": seconds, "flops": flops, **scores})
    return points


if __name__ == "__main__":
    started = time.time()
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    print(f"done in {time.time() - started:.0f} s")
