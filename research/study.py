"""Runs the cells of a study: train an objective, then decode at several thresholds. Finished cells never run again.

    python -m research.study run research/best-lfpo.yaml --only factorial --workers 3
    python -m research.study list research/best-lfpo.yaml

A cell is one training run (or the untrained base) with one seed. Its key is a hash of its settings. Its result is one
line of the study's .jsonl file, beside the fingerprint of the code that made it: what two tiny iterations of the same
settings yield. Refactorings keep the fingerprint; a cell whose code computes other numbers runs again.
"""

import argparse
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lfpo.config.build import build, load_yaml, merge
from lfpo.core.rng import key as hash_key
from lfpo.core.scoring import Row
from lfpo.prompts.tasks import Task, get_task

# Two of three solutions of a test split are for evaluation, the rest for tuning. The base has seen no demonstration of
# either, and no run trains on them.
TUNING_THIRD = 0


def cells_of(study: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    """The cells of a stage, seed by seed, so that a grid that stops early has every setting."""
    part, cells = study["stages"][stage], []
    for seed, task in itertools.product(part["seeds"], part["tasks"]):
        for label, config in part["objectives"].items():
            for levels in itertools.product(
                *part.get("factors", {}).values()
            ):  # they replace settings of the objective
                own = functools.reduce(merge, levels, config)
                setting = ", ".join([label, *map(spelled, levels)])
                cell = {"task": task, "label": label, "setting": setting, "config": own, "seed": seed}
                cells.append({**cell, "tuning": part.get("tuning", True)})
    return cells


def spelled(level: dict[str, Any]) -> str:
    """A factor's level as a few words."""
    return " ".join(f"{k} {v}" for k, v in {**level.get("objective", {}), **level}.items() if k != "objective")


def cell_key(cell: dict[str, Any], study: dict[str, Any]) -> str:
    """A hash of what decides a cell's result: task, seed, problems and settings, but not its label."""
    asked = {k: cell[k] for k in ("task", "config", "seed", "tuning")}
    asked |= {"common": study["common"], "of_task": study["tasks"][cell["task"]], "to": study["thresholds"]}
    asked["problems"] = study["problems"]["tuning" if cell["tuning"] else "evaluation"]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def training_config(cell: dict[str, Any], study: dict[str, Any], folder: str) -> Any:
    """The LFPOConfig of a cell."""
    from lfpo.config.train import LFPOConfig

    of_task = study["tasks"][cell["task"]]
    values = merge(load_yaml(of_task["recipe"]), study["common"])
    values = merge(values, {k: v for k, v in of_task.items() if k != "recipe"})
    own = dict(cell["config"])
    values["objective"] = own.pop("objective")
    values = merge(values, own)
    curve = {"threshold": values["eval_samplers"]["threshold"]}
    values |= {"seed": cell["seed"], "threads": 1, "output_dir": folder, "eval_samplers": curve, "eval_size": 200}
    if cell["tuning"]:
        values["eval_steps"] = 0
    return build(LFPOConfig, values, cell["label"])


def problems(task: Task, number: int, tuning: bool) -> list[Row]:
    """The first test problems whose solution is for tuning, or for evaluation."""
    rows: Iterator[Row] = (task.row("test", i) for i in itertools.count())
    mine = (r for r in rows if is_for_tuning(task.name, task.solution_key(r)) == tuning)
    return list(itertools.islice(mine, number))


def is_for_tuning(task: str, solution: str) -> bool:
    return hash_key("tuning", task, solution) % 3 == TUNING_THIRD


def run_cell(cell: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate. Returns the curve, the frontier, training FLOPs and seconds of this process."""
    import torch

    from lfpo.models import load_model, load_tokenizer
    from lfpo.runs.directory import Run
    from lfpo.train.rl import LFPOTrainer

    torch.set_num_threads(1)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        metrics: list[dict[str, Any]] = []
        if cell["config"] is None:
            config = training_config({**cell, "config": {"objective": {"name": "lfpo"}}}, study, folder)
            model, tokenizer = load_model(config.model), load_tokenizer(config.model)
        else:
            config = training_config(cell, study, folder)
            trainer = LFPOTrainer(args=config)
            trainer.train()
            model, tokenizer, metrics = trainer.model, trainer.tokenizer, Run(Path(folder)).read_metrics()
    curve = [
        {"step": m["step"], "flops": m["flops"], "accuracy": m["eval/threshold/accuracy"]}
        for m in metrics
        if "eval/threshold/accuracy" in m and "flops" in m
    ]
    last = metrics[-1] if metrics else {}
    return {
        **frontier_of(model, tokenizer, config, study, cell["tuning"]),
        "curve": curve,
        "flops": last.get("flops", 0.0),
        "seconds": round(time.process_time() - started, 1),
    }


def frontier_of(model: Any, tokenizer: Any, config: Any, study: dict[str, Any], tuning: bool) -> dict[str, Any]:
    """`frontier`: accuracy and forwards of greedy decoding at each of the study's thresholds. `forwards`: those of one
    token a step."""
    from lfpo.config.sampler import SamplerConfig
    from lfpo.eval.evaluate import evaluate
    from lfpo.rollout.sampling import as_it_is

    task = get_task(config.task)
    assert isinstance(task, Task)
    rows = problems(task, study["problems"]["tuning" if tuning else "evaluation"], tuning)
    like, frontier = config.eval_samplers["threshold"], []
    for threshold in study["thresholds"]:
        sampler = SamplerConfig(threshold=threshold, block_length=like.block_length, early_stop=like.early_stop)
        sampler = sampler.for_length(task.gen_length, model.block_length)
        found = evaluate(as_it_is(model, config.rollout_tokens), model, tokenizer, rows, task.correct_all, sampler)
        point = {"threshold": threshold, "accuracy": round(found.accuracy or 0.0, 5), "nfe": round(found.mean_nfe, 4)}
        frontier.append(point)
    return {"forwards": task.gen_length, "frontier": frontier}


def fingerprint(cell: dict[str, Any], study: dict[str, Any]) -> str:
    """What two iterations of two prompts yield with these settings, as 16 hexadecimal digits."""
    from lfpo.train.rl import LFPOTrainer

    if cell["config"] is None:
        return "base"
    config = training_config({**cell, "tuning": True}, study, "-")
    small = {"prompts_per_iteration": 2, "max_steps": 2, "learning_rate": 1e-4, "seed": 0, "log_completions": False}
    small["optimizer_steps_per_iteration"] = min(2, config.optimizer_steps_per_iteration)
    trainer, seen = LFPOTrainer(args=dataclasses.replace(config, **small)), []
    for step in range(2):
        metrics = trainer.run_iteration(step)
        # The loss is left out: of policy gradients it is rounding noise around 0.
        seen.append([f"{metrics[k]:.3g}" for k in ("grad_norm", "reward", "nfe")])
        seen.append([f"{k} {v:.3f}" for k, v in sorted(metrics.items()) if k.startswith("p_target")])
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


class Store:
    """Finished cells, one JSON object a line, keyed by cell: those on tuning seeds in STUDY.tuning.jsonl, the others in
    STUDY.jsonl. Several grids may append to one file."""

    def __init__(self, path: Path):
        self.paths = {False: path, True: path.with_suffix(".tuning.jsonl")}

    def read(self) -> dict[str, dict[str, Any]]:
        files = [path.read_text().splitlines() for path in self.paths.values() if path.exists()]
        return {row["key"]: row for lines in files for row in map(json.loads, lines)}

    def add(self, row: dict[str, Any]) -> None:
        with self.paths[row["tuning"]].open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def work(job: tuple[dict[str, Any], dict[str, Any], str, str]) -> tuple[dict[str, Any] | None, str]:
    """One cell in a worker process: its row and "", or None and why it failed."""
    cell, study, key, path = job
    try:
        found = fingerprint(cell, study)
        stored = Store(Path(path)).read().get(key)
        if stored is not None and stored["fingerprint"] == found:
            return stored, ""
        row = {"key": key, **cell, "fingerprint": found, **run_cell(cell, study)}
    except Exception:  # the grid goes on with its other cells, and says at the end which ones failed
        return None, traceback.format_exc()
    Store(Path(path)).add(row)
    return row, ""


def run(study: dict[str, Any], path: Path, stages: list[str], workers: int, check: bool) -> int:
    """Run the missing cells of some stages. check: also those whose fingerprint is another one today."""
    from lfpo.compare.statistics import frontier_area

    store, failed = Store(path), 0
    done = store.read()
    cells = {cell_key(cell, study): cell for stage in stages for cell in cells_of(study, stage)}
    cells = {key: cell for key, cell in cells.items() if check or key not in done}
    cells = dict(sorted(cells.items(), key=lambda item: item[1]["seed"]))  # every setting has its first seed first
    print(f"{len(cells)} cells to run", flush=True)
    jobs = [(cell, study, key, str(path)) for key, cell in cells.items()]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, (row, why) in enumerate(pool.imap_unordered(work, jobs), 1):
            if row is None:
                failed += 1
                print(f"[{number}/{len(jobs)}] failed: {why}", flush=True)
                continue
            area = 100 * frontier_area(row["frontier"], row["forwards"])
            about = f"{row['task']} {row['label']} {json.dumps(row['config'])} seed {row['seed']}"
            print(
                f"[{number}/{len(jobs)}] {area:.1f} {row['flops'] / 1e12:.1f} TFLOP {row['seconds']} s {about}",
                flush=True,
            )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "list"])
    parser.add_argument("study", type=Path)
    parser.add_argument("--only", default="", help="stages, separated by commas")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="run cells again whose fingerprint has changed")
    args = parser.parse_args()
    study = yaml.safe_load(args.study.read_text())
    path = args.study.with_suffix(".jsonl")
    stages = args.only.split(",") if args.only else list(study["stages"])
    if args.command == "run":
        return run(study, path, stages, args.workers, args.check)
    done = Store(path).read()
    for stage in stages:
        cells = cells_of(study, stage)
        finished = sum(cell_key(cell, study) in done for cell in cells)
        print(f"{stage}: {finished} of {len(cells)} cells finished")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
