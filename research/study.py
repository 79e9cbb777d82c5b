"""Runs the cells of a study: train an objective, then decode at several thresholds. Finished cells never run again.

    python -m research.study run research/best-lfpo.yaml --only factorial --workers 3
    python -m research.study list research/best-lfpo.yaml

A cell is one training run (or the untrained base) with one seed. Its key is a hash of its settings. Its result is one
line of the study's .jsonl file, beside a hash of the model that it started from, and the fingerprint of the code that
made it: what two tiny iterations of the same settings yield. Refactorings keep the fingerprint; a cell whose code
computes other numbers runs again.
"""

import argparse
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from lfpo.base.environment import before_torch
from lfpo.config.build import build, load_yaml, merge, to_dict, yaml_text
from lfpo.config.errors import UserError
from lfpo.config.files import read_json, replace_file
from lfpo.config.plugins import resolve
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.observer import Observer
from lfpo.core.rng import key as hash_key
from lfpo.core.scoring import columns_of
from lfpo.eval.estimates import pass_at_k
from lfpo.eval.store import file_sha256
from lfpo.models.loading import resolve as resolve_model
from lfpo.prompts.tasks import Row, Task, get_task
from lfpo.runs.context import StopRequests

# Two of three solutions of a test split are for evaluation, the rest for tuning. The base has seen no demonstration of
# either, and no run trains on them.
TUNING_THIRD = 0
UNTRAINED = {"objective": {"name": "lfpo"}}  # of the base, which no objective trains


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
    if "rollouts" in study:  # studies before this measure had no such key
        asked["rollouts"] = study["rollouts"]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def training_config(cell: dict[str, Any], study: dict[str, Any], folder: str) -> LFPOConfig:
    """The settings of a cell's training run."""
    of_task = study["tasks"][cell["task"]]
    values = merge(load_yaml(of_task["recipe"]), study["common"])
    values = merge(values, {k: v for k, v in of_task.items() if k not in ("recipe", "samples")})
    own = dict(cell["config"])
    values["objective"] = own.pop("objective")
    values = merge(values, own)
    name = curve_sampler(study)
    curve = {name: values["eval_samplers"][name]}
    values |= {"seed": cell["seed"], "threads": 1, "output_dir": folder, "eval_samplers": curve, "eval_size": 200}
    if cell["tuning"]:
        values["eval_steps"] = 0
    return build(LFPOConfig, values, cell["label"])


def problems(task: Task, number: int, tuning: bool) -> list[int]:
    """Indices of the first test problems whose solution is for tuning, or for evaluation."""
    fitting = (i for i in itertools.count() if is_for_tuning(task.name, solution_of(task, i)) == tuning)
    return list(itertools.islice(fitting, number))


def solution_of(task: Task, index: int) -> str:
    return task.solution_key(task.row("test", index))


def model_of(cell: dict[str, Any], study: dict[str, Any]) -> str:
    """The model that a cell starts from."""
    return training_config({**cell, "config": cell["config"] or UNTRAINED}, study, "-").model


def is_for_tuning(task: str, solution: str) -> bool:
    return hash_key("tuning", task, solution) % 3 == TUNING_THIRD


def write_cell(cell: dict[str, Any], study: dict[str, Any], folder: Path) -> Path:
    """The folder of a cell as lfpo.compare.cell takes it, and study.json with what the fingerprint needs."""
    config = training_config({**cell, "config": cell["config"] or UNTRAINED}, study, str(folder / "run"))
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "config.yaml", yaml_text(to_dict(config)))
    replace_file(folder / "cell.json", json.dumps(measured(cell, study, config)) + "\n")
    replace_file(folder / "study.json", json.dumps({"cell": cell, "study": study}) + "\n")
    return folder


def measured(cell: dict[str, Any], study: dict[str, Any], config: LFPOConfig) -> dict[str, Any]:
    """What lfpo.compare.cell measures of a cell."""
    task, size = get_task(config.task or ""), study["problems"]["tuning" if cell["tuning"] else "evaluation"]
    assert isinstance(task, Task)
    chosen = {"thresholds": study["thresholds"], "problems": problems(task, size, cell["tuning"])}
    return {"train": cell["config"] is not None, "sampler": curve_sampler(study), **chosen}


def curve_sampler(study: dict[str, Any]) -> str:
    """The name of the eval sampler of the curves; without thresholds it measures the trained model too."""
    return study.get("sampler", "threshold")


def run_cell(folder: Path) -> None:
    """`python -m research.study FOLDER`, the process of a cell: its fingerprint, then its result."""
    from lfpo.compare.cell import main as train_and_measure

    if not (folder / "fingerprint").exists():
        replace_file(folder / "fingerprint", fingerprint(**read_json(folder / "study.json")))
    train_and_measure(folder)
    config = build(LFPOConfig, load_yaml(folder / "config.yaml"))
    asked, cell = read_json(folder / "study.json"), read_json(folder / "cell.json")
    more: dict[str, Any] = {}
    samples = asked["study"]["tasks"][asked["cell"]["task"]].get("samples")
    drawn = asked["study"].get("rollouts")
    if config.reward_funcs:
        more["reward"] = graded(cell, config)
    if samples:
        more["pass_at_k"] = passed(cell, config, **samples)
    if drawn:
        more |= sampled(cell, config, **drawn)
    if more:
        replace_file(folder / "result.json", json.dumps({**read_json(folder / "result.json"), **more}) + "\n")


def graded(cell: dict[str, Any], config: LFPOConfig) -> float:
    """The mean graded reward of a cell's problems, decoded greedily by the eval sampler of its curve; accuracy says
    only how many are right as a whole."""
    rows, found = decoded(cell, config, cell["problems"], 0.0)
    function = resolve(config.reward_funcs[0], {}, kind="reward")
    texts = [answer.completion for answer in found.answers]
    return round(sum(function([row["prompt"] for row in rows], texts, **columns_of(rows))) / len(rows), 5)


def passed(cell: dict[str, Any], config: LFPOConfig, problems: int, each: int) -> float:
    """pass@`each` of the first `problems` of a cell: the share that one of so many samples solves, drawn at temperature
    1 by the eval sampler of its curve."""
    indices = [i for i in cell["problems"][:problems] for _ in range(each)]
    correct = decoded(cell, config, indices, 1.0)[1].values
    return sum(any(correct[i : i + each]) for i in range(0, len(correct), each)) / problems


def sampled(cell: dict[str, Any], config: LFPOConfig, problems: int, each: int, k: list[int]) -> dict[str, Any]:
    """Of the first `problems` of a cell, `each` samples drawn as training draws rollouts: pass@k for several k, the
    unbiased estimate from all samples, and how many different right completions a problem has among them."""
    indices = [i for i in cell["problems"][:problems] for _ in range(each)]
    found = decoded(cell, config, indices, config.sampler.temperature, config.sampler)[1]
    groups = [slice(i, i + each) for i in range(0, len(indices), each)]
    right = [sum(map(bool, found.values[group])) for group in groups]
    texts = [answer.completion for answer in found.answers]
    kinds = [len({text for text, ok in zip(texts[g], found.values[g], strict=True) if ok}) for g in groups]
    passed = {str(n): round(sum(pass_at_k(each, c, n) for c in right) / problems, 5) for n in k}
    return {"pass": passed, "distinct": round(sum(kinds) / problems, 4)}


def decoded(
    cell: dict[str, Any],
    config: LFPOConfig,
    indices: list[int],
    temperature: float,
    sampler: SamplerConfig | None = None,
) -> tuple[list[Row], Any]:
    """These test problems, decoded by the trained model; an index may come several times. sampler: instead of the eval
    sampler of the cell's curve."""
    from lfpo.eval.evaluate import evaluate
    from lfpo.models import load_model, load_tokenizer
    from lfpo.prompts.sources import task_judge
    from lfpo.rollout.sampling import as_it_is

    model = load_model(Path(config.output_dir) / "model" if cell["train"] else config.model)
    task, tokenizer = get_task(config.task or ""), load_tokenizer(config.model)
    rows = [task.row("test", i) for i in indices]
    sampler = sampler or config.eval_samplers[cell["sampler"]]
    sampler = sampler.for_length(task.gen_length, model.block_length)
    sampler = dataclasses.replace(sampler, temperature=temperature)
    return rows, evaluate(as_it_is(model), model, tokenizer, rows, task_judge(task), sampler)


def fingerprint(cell: dict[str, Any], study: dict[str, Any]) -> str:
    """What two iterations of two prompts yield with these settings, as 16 hexadecimal digits."""
    from lfpo.train.rl import LFPOTrainer

    if cell["config"] is None:
        return "base"
    config = training_config({**cell, "tuning": True}, study, "-")
    small: dict[str, Any] = {
        "prompts_per_iteration": 2,
        "max_steps": 2,
        "learning_rate": 1e-4,
        "seed": 0,
        "log_completions": False,
    }
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
    STUDY.jsonl. Several grids may append to one file. `also`: a study whose finished cells are read too; those with the
    same settings have the same key."""

    def __init__(self, path: Path, also: str | None = None):
        self.paths = {False: path, True: path.with_suffix(".tuning.jsonl")}
        self.others = [] if also is None else list(Store(path.with_name(also)).paths.values())

    def read(self) -> dict[str, dict[str, Any]]:
        files = [p.read_text().splitlines() for p in [*self.others, *self.paths.values()] if p.exists()]
        return {row["key"]: row for lines in files for row in map(json.loads, lines)}

    def add(self, row: dict[str, Any]) -> None:
        with self.paths[row["tuning"]].open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def run(study: dict[str, Any], path: Path, stages: list[str], workers: int, check: bool) -> int:
    """Run the missing cells of some stages. check: also those whose fingerprint is another one today. Returns how many
    failed. Cells that were interrupted go on from their checkpoints, in FOLDER of `path` without its suffix."""
    from lfpo.compare.processes import run_cells
    from lfpo.compare.statistics import frontier_area

    store = Store(path, study.get("also"))
    done = store.read()
    cells = {cell_key(cell, study): cell for stage in stages for cell in cells_of(study, stage)}
    base = functools.cache(lambda model: file_sha256(resolve_model(model))[:16])
    models = {model_of(cell, study) for cell in cells.values()}
    for cell in (cell for stage in study["stages"] for cell in cells_of(study, stage)):
        row = done.get(cell_key(cell, study), {})
        if "base" not in row:  # written before rows named it
            continue
        if (model := model_of(cell, study)) in models and row["base"] != base(model):
            raise UserError(
                f"{path}: {cell['task']} {cell['setting']} seed {cell['seed']} was run from another base "
                f"({row['base']}), and {model} is {base(model)} here; move the rows of that base away"
            )
    if check:
        done = {
            key: row
            for key, row in done.items()
            if key in cells and fingerprint(cells[key], study) == row["fingerprint"]
        }
    cells = {key: cell for key, cell in cells.items() if key not in done}
    cells = dict(sorted(cells.items(), key=lambda item: item[1]["seed"]))  # every setting has its first seed first
    print(f"{len(cells)} cells to run", flush=True)
    labels = {f"{cell['task']} {cell['setting']} seed {cell['seed']} ({key})": key for key, cell in cells.items()}

    def finish(label: str, folder: Path) -> str:
        result, key = read_json(folder / "result.json"), labels[label]
        names = ["forwards", "frontier", "reward", "pass_at_k", "pass", "distinct", "same_ending"]
        names += ["entropy", "flops", "seconds"]
        kept = {name: result[name] for name in names if name in result}
        kept["curve"] = [{k: p[k] for k in ("step", "flops", "accuracy", "nfe")} for p in result["curve"] if p["step"]]
        cell = {name: value for name, value in cells[key].items() if name != "setting"}  # label and config say it
        made_of = {"base": base(model_of(cells[key], study)), "fingerprint": (folder / "fingerprint").read_text()}
        store.add({"key": key, **cell, **made_of, **kept})
        shutil.rmtree(folder)
        return f"{100 * frontier_area(result['frontier'], result['forwards']):.1f}, {result['flops'] / 1e12:.1f} TFLOP"

    folders = {label: write_cell(cells[key], study, path.with_suffix("") / key) for label, key in labels.items()}
    observer, say = Observer(), functools.partial(print, flush=True)
    with StopRequests(observer), observer.interruptible_work():  # finished cells are kept
        before_torch()  # the cells take its settings over
        return len(run_cells(folders, "research.study", finish, workers, 1, say))


def main() -> int:
    if len(sys.argv) == 2 and Path(sys.argv[1]).is_dir():
        run_cell(Path(sys.argv[1]))
        return 0
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
        try:
            return run(study, path, stages, args.workers, args.check)
        except UserError as error:
            raise SystemExit(f"error: {error}") from None
    done = Store(path, study.get("also")).read()
    for stage in stages:
        cells = cells_of(study, stage)
        finished = sum(cell_key(cell, study) in done for cell in cells)
        print(f"{stage}: {finished} of {len(cells)} cells finished")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
