"""A small model on a large GPU: its kernels are short, so starting them takes the time. What compiled layers and CUDA
graphs save in rollouts and updates; and how long arms of the comparison on a real model take."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.problem import random_prompts
from gpu.rows import Machine, Row, at_least, measured, not_run
from gpu.shapes import SMALL
from lfpo.base.measure import matmul_peak, timed
from lfpo.config.sampler import SamplerConfig
from lfpo.core.learner import accumulate_gradients
from lfpo.core.lfpo import LFPO
from lfpo.core.model import CURRENT, OLD
from lfpo.eval.store import file_sha256
from lfpo.models import MaskedDiffusionLM, init_model
from lfpo.models.layouts import LAYOUTS
from lfpo.plan.flops import pass_flops, rollout_flops
from lfpo.rollout.sampling import rollout

# SmolLM2-135M's sizes in LLaDA's layout, with as many heads for keys as for queries.
SMOL: dict[str, Any] = {**LAYOUTS["llada-8b"], "d_model": 576, "n_layers": 30, "n_heads": 9, "n_kv_heads": 9}
SMOL |= {"mlp_hidden_size": 1536, "vocab_size": 49152, "embedding_size": 49152, "mask_token_id": 49151}
SMOL |= {"eos_token_id": 49150, "pad_token_id": 49150}
STUDY = "research/real-tuned.yaml"
BASE = Path("runs/real/finetune/model")
ARMS = ("lfpo", "imitation", "unigrpo")


def launches(machine: Machine) -> Iterator[Row]:
    """Rollouts and one pass of the update at the recipe real's size, as they are and with compiled layers."""
    config = machine.size(SMOL, SMALL)
    dtype = machine.size(torch.bfloat16, torch.float32)
    model = init_model(config, seed=0, device=machine.device, dtype=dtype)
    peak = matmul_peak(machine.device, dtype)
    count, length = machine.size((64, 64), (4, 16))
    prompts = random_prompts(count, 64, model)
    sampler = SamplerConfig(gen_length=length, block_length=length, temperature=1.0)
    seen: dict[str, Any] = {}  # what was sampled, and the views of it

    def roll() -> None:
        seen["found"] = rollout(model, prompts, sampler, range(count))

    def update() -> None:
        trajectory, seeds = seen["found"], list(range(count))
        signal = torch.linspace(0, 1, count, dtype=torch.float64, device=machine.device)
        views = LFPO().views(trajectory, signal, seeds)
        policies = {CURRENT: model, OLD: model}
        accumulate_gradients(LFPO(), policies, views, signal, update_tokens=16384)
        seen["views"] = views
        model.zero_grad()

    def rates(how: str) -> Iterator[tuple[str, float]]:
        for name, work in (("rollout", roll), ("update", update)):
            if machine.gpu:
                work()  # kernels, compilation
            seconds = timed(work, machine.device)[1]
            yield f"{name}, {how}: share of the matrix speed", flops_of(name, model, seen) / seconds / peak

    plain = {}
    for what, share in rates("as it is"):
        plain[what.split(",")[0]] = share
        yield measured(what, share)
    if not machine.gpu:
        yield not_run("with compiled layers, and with CUDA graphs", "launches cost nothing on a CPU")
        return
    for how, mode in (("compiled layers", None), ("CUDA graphs", "reduce-overhead")):
        torch.compiler.reset()
        for layer in model.backbone.model.layers:
            layer.compile(mode=mode, dynamic=False)
        for what, share in rates(how):
            yield at_least(what, share / plain[what.split(",")[0]], 1.5, "of the share as it is")


def flops_of(name: str, model: MaskedDiffusionLM, seen: dict[str, Any]) -> float:
    if name == "rollout":
        return rollout_flops(model, seen["found"])
    return pass_flops(model, seen["views"].ran_by(CURRENT, backward=True))


def comparison(machine: Machine) -> Iterator[Row]:
    """The first arms of the comparison on a real model, seed 1, one after the other; finished cells stay."""
    if not (machine.gpu and BASE.is_dir()):
        yield not_run(f"{STUDY}: {', '.join(ARMS)}", f"it needs a GPU and {BASE}, which `make real` leaves")
        return
    command = [sys.executable, "-m", "research.study", "run", STUDY, "--only", "evaluation"]
    started = time.monotonic()
    process = subprocess.Popen(command)
    results = Path(STUDY).with_suffix(".jsonl")
    while process.poll() is None and len(finished(results)) < len(ARMS):
        time.sleep(2)
    process.terminate()  # a cell that was begun goes on from its checkpoint
    process.wait()
    for row in finished(results):
        best = max(point["accuracy"] for point in row["frontier"])
        yield measured(f"{row['label']}, seed {row['seed']}: accuracy after {row['seconds']:.0f} s", best)
    yield measured("all", time.monotonic() - started, "s")


def finished(results: Path) -> list[dict[str, Any]]:
    lines = results.read_text().splitlines() if results.exists() else []
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["seed"] == 1 and row["label"] in ARMS and row.get("base") == base()]


def base() -> str:
    """The name that a study's rows give their base."""
    return file_sha256(BASE)[:16]
