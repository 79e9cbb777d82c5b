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
from lfpo.base.environment import use_threads
from lfpo.base.errors import UserError
from lfpo.base.files import read_json, replace_file
from lfpo.compare.settings import frontier_sampler
from lfpo.compare.store import pack
from lfpo.eval.evaluate import EvalResult, evaluate
from lfpo.eval.straightness import state_quality
from lfpo.models import MaskedDiffusionLM, load_model, load_tokenizer
from lfpo.prompts.tasks import DataTask, Row, Task, get_task
from lfpo.rollout.engine import as_it_is
from lfpo.rollout.sampler import SamplerConfig
from lfpo.runs.directory import Run
from lfpo.train.config import LFPOConfig

STRAIGHT_PROBLEMS = 50
VALIDATION_SEED = 7919


def main(folder: Path) -> None:
    """Run the cell described by `folder/cell.json` and `folder/config.yaml`."""
    started = time.process_time()
    cell = read_json(folder / "cell.json")
    config = build(LFPOConfig, load_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
    curve_sampler = cell["curve_sampler"]
    if cell["train"]:
        from lfpo.train.rl import LFPOTrainer

        during = dataclasses.replace(config, eval_samplers={curve_sampler: config.eval_samplers[curve_sampler]})
        trainer = LFPOTrainer(args=during)
        trainer.train(resume=(Path(config.output_dir) / "config.yaml").exists())
        model, tokenizer = trainer.model, trainer.tokenizer
        metrics = Run(Path(config.output_dir)).read_metrics()
    else:
        use_threads(config.threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, tokenizer, metrics = load_model(config.model, device=device), load_tokenizer(config.model), []
    trained_in = time.process_time() - started
    result = {
        "task": _task(config).name,
        "forwards": _task(config).gen_length,
        "curve": curve(metrics, curve_sampler, config),
        "flops": max((m.get("flops", 0.0) for m in metrics), default=0.0),
        **measure(model, tokenizer, config, cell),
        "training_seconds": round(trained_in, 1),
        "seconds": round(time.process_time() - started, 1),
    }
    replace_file(folder / "result.json", json.dumps(result) + "\n")


def measure(model: MaskedDiffusionLM, tokenizer: Any, config: LFPOConfig, cell: dict[str, Any]) -> dict[str, Any]:
    """The frontier on the cell's problems, and for cells that are not for tuning the other eval samplers,
    straightness and calibration."""
    rows, sampler = problems(_task(config), cell), config.eval_samplers[cell["curve_sampler"]]

    def under(one: SamplerConfig) -> dict[str, Any]:
        return summary(_evaluate(model, tokenizer, config, one, rows, seed=config.seed), config)

    found: dict[str, Any] = {
        "problems": len(rows),
        "frontier": [{"threshold": t, **under(frontier_sampler(sampler, t))} for t in cell["thresholds"]],
    }
    if not cell["tuning"]:
        found["eval"] = {name: under(one) for name, one in config.eval_samplers.items()}
        greedy = SamplerConfig(block_length=config.sampler.block_length)
        decoded = _evaluate(model, tokenizer, config, greedy, rows[:STRAIGHT_PROBLEMS])
        right = [c is True for c in decoded.correct]
        found |= dataclasses.asdict(state_quality(model, decoded.trajectory, right, update_tokens=config.update_tokens))
    return found


def problems(task: Task | DataTask, cell: dict[str, Any]) -> Sequence[Row]:
    """The problems of a cell: of the test split, which in a task in validation are its validation problems. A cell for
    tuning on another task takes them from the training split."""
    if cell["tuning"] and not (isinstance(task, Task) and task.validating):
        return [task.row("train", i, seed=VALIDATION_SEED) for i in range(cell["problems"])]
    return task.test_rows(cell["problems"])


def summary(result: EvalResult, config: LFPOConfig) -> dict[str, Any]:
    """An evaluation as the store keeps it. Raises UserError when a verdict is missing."""
    if result.not_judged:
        raise UserError(
            f"task {config.task!r}: {result.not_judged} of {len(result.correct)} completions cannot be judged on this "
            "machine, and a comparison needs all of them; `lfpo doctor` says what is missing"
        )
    return {
        "accuracy": result.accuracy,
        "nfe": round(result.mean_nfe, 4),
        "steps": round(result.mean_steps, 4),
        "correct": pack([c is True for c in result.correct]),
    }


def curve(metrics: list[dict[str, Any]], sampler: str, config: LFPOConfig) -> list[dict[str, float]]:
    """Each evaluation during training, with the training seconds, FLOPs and rollouts up to that step."""
    points, seconds, flops, rollouts = [], 0.0, 0.0, 0.0
    for m in metrics:
        seconds, flops = m.get("time/total", seconds), m.get("flops", flops)
        if m["step"]:
            rollouts += config.prompts_per_iteration * config.num_generations
        if (accuracy := m.get(f"eval/{sampler}/accuracy")) is not None:
            at = {"step": m["step"], "seconds": round(seconds, 2), "flops": flops, "rollouts": rollouts}
            points.append({**at, "accuracy": accuracy})
    return points


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
    task, engine = _task(config), as_it_is(model, config.rollout_tokens)
    sampler = sampler.for_length(task.gen_length, model.block_length)
    return evaluate(engine, model, tokenizer, rows, task.correct_all, sampler, seed=seed)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
