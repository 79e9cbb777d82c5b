"""Numbers of benchmarks/RESULTS.md: `PYTHONPATH=src:tests/helpers python -m ray_numbers nodes` (or `ahead`, `weights`).

nodes: rollouts of the embedded model by one worker, and by two of which the second has a node of its own, of the
    same speed or a third of it. A unit takes a fixed time, so that the cores of this machine do not decide.
ahead: training with one worker at staleness 0, 1 and 2, where rollouts of a batch take as long as its update.
weights: bytes and seconds of handing new weights to a worker, for a random model of 200 M parameters.
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import ray
from ray.cluster_utils import Cluster
from rich.console import Console

import lfpo.ray.engine
import processes
from lfpo.config.build import build
from lfpo.config.sampler import SamplerConfig
from lfpo.config.train import LFPOConfig
from lfpo.core.encoding import encode_rows
from lfpo.core.engine import Request
from lfpo.core.model import OLD
from lfpo.core.trajectory import Trajectory
from lfpo.models import init_model, load_tokenizer, save_model
from lfpo.models.layouts import LAYOUTS
from lfpo.models.policies import load_policies
from lfpo.prompts.tasks import get_task
from lfpo.ray.engine import RayEngine, Worker
from lfpo.rollout.local_engine import units_of
from lfpo.runs.display import Display
from lfpo.train.rl import LFPOTrainer

TASK, PROMPTS, GENERATIONS = "choice", 24, 2
FAST, SLOW = 1.5, 4.5  # seconds that a unit takes on a node


class NodeWorker(Worker):
    """A worker that knows its node, and takes $SECONDS for a unit, more than sampling needs."""

    def node(self) -> str:
        return os.environ.get("NODE", "fast")

    def sample(self, *arguments: Any) -> Trajectory:
        began = time.perf_counter()
        found = super().sample(*arguments)
        time.sleep(max(0.0, float(os.environ["SECONDS"]) + began - time.perf_counter()))
        return found


def nodes() -> None:
    lfpo.ray.engine.Worker = NodeWorker  # type: ignore[misc]
    for name, machines in (
        ("one node", [FAST]),
        ("a second of the same speed", [FAST, FAST]),
        ("a second, 3 times slower", [FAST, SLOW]),
    ):
        print(name, flush=True)
        _sample_on(machines)


def _sample_on(machines: list[float]) -> None:
    cluster = Cluster()
    try:
        for number, seconds in enumerate(machines):
            variables = processes.environment(NODE=f"node {number + 1}", SECONDS=str(seconds))
            cluster.add_node(num_cpus=1, env_vars=variables)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        settings = {"name": "ray", "workers": len(machines)}
        args = _config("embedded", engine=settings, num_generations=GENERATIONS)
        policies, tokenizer = load_policies(args, None, None, needs_base=False)
        task, policy = get_task(TASK), policies[OLD]
        encoded = encode_rows([task.row("train", i) for i in range(PROMPTS)], tokenizer, policy, task.gen_length)
        prompts = [ids for ids in encoded for _ in range(GENERATIONS)]
        request = Request(
            prompts, range(len(prompts)), SamplerConfig(temperature=1.0).for_length(task.gen_length), GENERATIONS
        )
        engine = RayEngine(args)
        engine.update(0, policy)
        engine.sample(units_of(request, 2 * GENERATIONS)[0])  # every worker has its weights
        engine.metrics()
        began = time.perf_counter()
        engine.sample(request)
        waited = time.perf_counter() - began
        metrics, of_nodes = engine.metrics(), Counter[str]()
        for i, actor in enumerate(engine.actors):
            of_nodes[ray.get(actor.node.remote())] += (
                round(metrics.get(f"engine/worker_{i}/rollouts", 0)) // GENERATIONS
            )
        shares = ", ".join(f"{node} {units}" for node, units in sorted(of_nodes.items()))
        print(f"  the trainer waits {waited:.1f} s for {PROMPTS} units; {shares}", flush=True)
        engine.close()
    finally:
        ray.shutdown()
        cluster.shutdown()


ITERATIONS, REPEATS, UNITS = 8, 3, 8
RECIPE: dict[str, Any] = {"task": "words", "objective": {"name": "lfpo", "timesteps": 2}}
RECIPE |= {"prompts_per_iteration": UNITS, "num_generations": 8, "max_steps": ITERATIONS, "save_steps": ITERATIONS}
RECIPE |= {"eval_steps": 0, "sampler": {"threshold": 0.9, "temperature": 1.0}}


def ahead() -> None:
    """Whole runs at each staleness, in turn; the seconds of a unit are those of the update of a first, local run."""
    lfpo.ray.engine.Worker = NodeWorker  # type: ignore[misc]
    _, update = _trained({"name": "local"})
    seconds = update / ITERATIONS / UNITS
    print(f"an update takes {update / ITERATIONS:.1f} s, a unit {seconds:.2f} s", flush=True)
    os.environ.update(processes.environment(SECONDS=str(seconds)))
    found: dict[int, list[tuple[float, float]]] = {0: [], 1: [], 2: []}
    for _ in range(REPEATS):
        for staleness, runs in found.items():
            runs.append(_trained({"name": "ray", "workers": 1, "max_staleness": staleness}))
            ray.shutdown()
    plain = median(whole for whole, _ in found[0])
    for staleness, runs in found.items():
        whole, update = (median(values) for values in zip(*runs, strict=True))
        every = ", ".join(f"{run[0]:.1f}" for run in runs)
        print(f"  staleness {staleness}: {whole:.1f} s ({whole / plain:.2f}), updates {update:.1f} s; runs {every}")


def _trained(engine: dict[str, Any]) -> tuple[float, float]:
    """Seconds of all iterations, and of their updates."""
    folder = Path(tempfile.mkdtemp(prefix="lfpo-ahead-"))
    try:
        trainer = LFPOTrainer(
            args=_config("embedded", **RECIPE | {"output_dir": str(folder / "run"), "engine": engine})
        )
        trainer.train(display=Display(ITERATIONS, Console(quiet=True)))
        metrics = trainer.run.read_metrics()
        return metrics[-1]["time/total"], sum(m.get("time/update", 0.0) for m in metrics)
    finally:
        shutil.rmtree(folder)


SHAPE = {  # 202 M parameters
    **LAYOUTS["llada-8b"],
    "d_model": 1024,
    "n_layers": 10,
    "n_heads": 16,
    "mlp_hidden_size": 3072,
    "vocab_size": 32768,
    "mask_token_id": 4,
    "eos_token_id": 3,
    "pad_token_id": 3,
}
VERSIONS = 5


def weights() -> None:
    folder = Path(tempfile.mkdtemp(prefix="lfpo-weights-"))
    try:
        model = init_model(SHAPE, seed=0)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, median of {VERSIONS} versions")
        save_model(model, folder, load_tokenizer("embedded"))
        del model
        for name, more in (("LoRA, rank 64", {"lora": {"r": 64, "lora_alpha": 64}}), ("all weights", {})):
            print(f"  {name}: {_handed_out(folder, more)}", flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(folder)


def _handed_out(folder: Path, more: dict[str, Any]) -> str:
    args = _config(str(folder), engine={"name": "ray"}, **more)
    policies, _ = load_policies(args, None, None, needs_base=False)
    engine, request = RayEngine(args), Request([[5, 6, 7]], [0], SamplerConfig().for_length(1))
    ready, taken = [], []
    for version in range(VERSIONS):
        engine.update(version, policies[OLD])
        seconds = []
        for _ in range(2):  # with new weights, and with those that the worker has
            began = time.perf_counter()
            engine.sample(request)
            seconds.append(time.perf_counter() - began)
        taken.append(seconds[0] - seconds[1])
        metrics = engine.metrics()
        ready.append(metrics["engine/weights_seconds"])
    engine.close()
    size = metrics["engine/weights_bytes"] / 2**20
    return (
        f"{size:.0f} MiB; {median(ready):.2f} s until they are in the object store, {median(taken):.2f} s in the worker"
    )


def _config(model: str, **settings: Any) -> LFPOConfig:
    return build(LFPOConfig, {"output_dir": "unused", "model": model, "threads": 1} | settings, "ray_numbers")


if __name__ == "__main__":
    {"nodes": nodes, "ahead": ahead, "weights": weights}[sys.argv[1]]()
