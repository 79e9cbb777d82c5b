"""GPU code paths on a CUDA stand-in: no operation mixes devices, and the results are the CPU's."""

import contextlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cuda_stand_in import cuda_stand_in
from golden_families import nemotron
from lfpo.config.build import build
from lfpo.config.eval import EvalConfig
from lfpo.config.sampler import SamplerConfig
from lfpo.config.sft import SFTConfig
from lfpo.core.denoise import LOOK_EVERY
from lfpo.core.learner import accumulate_gradients
from lfpo.core.model import CURRENT, OLD
from lfpo.eval.command import run_each
from lfpo.eval.likelihood import Pair, likelihood_bounds
from lfpo.models import load_model
from lfpo.objectives import make_objective
from lfpo.rollout.sampling import rollout
from lfpo.train.rl import LFPOTrainer
from lfpo.train.sft import train_sft
from small_runs import choice_config
from soon import soon

# The losses of all objectives are compared by the check `losses-agree` (checks/gpu/agreement.py).
OTHERS: list[dict[str, Any]] = [
    {"lora": {"r": 4}, "objective": {"name": "unigrpo"}, "merge_lora": False},  # as on the CPU
    *({name: True} for name in ("offload_reference", "gradient_checkpointing")),
]


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"bf16": True}, {}, *OTHERS], ids=str)
def test_training(changes: dict[str, Any], llada: Path, tmp_path: Path):
    """Each device also resumes from the other's checkpoint."""
    sizes = {"num_generations": 2, "optimizer_steps_per_iteration": 1, "update_tokens": 256, "rollout_tokens": 256}
    settings: dict[str, Any] = {**sizes, "bf16": False, "eval_steps": 2, "threads": 1}
    settings |= {"head_precision": "float32", **changes}  # as on the CPU

    def train(steps: int, where: str, *, resume: bool = False) -> list[dict[str, Any]]:
        trainer = LFPOTrainer(args=choice_config(tmp_path / where, llada, max_steps=steps, **settings))
        trainer.train(resume=resume)
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in trainer.run.read_metrics()]

    with cuda_stand_in():
        there = train(2, "there")
    if changes.get("bf16"):  # not used on the CPU, so the numbers differ
        assert all(row["grad_norm"] > 0 for row in there[1:])
        return
    here = train(2, "here")
    assert there == [pytest.approx(row, rel=1e-4, abs=1e-6, nan_ok=True) for row in here]
    same = pytest.approx(there[-1], rel=1e-4, abs=1e-6, nan_ok=True)
    weights = load_file(tmp_path / "there" / "model" / "model.safetensors")
    for where, machine in (("here", cuda_stand_in()), ("there", contextlib.nullcontext())):
        shutil.rmtree(tmp_path / where / "checkpoints" / "step-2")
        with machine:
            assert train(2, where, resume=True)[-1] == same
        for name, tensor in load_file(tmp_path / where / "model" / "model.safetensors").items():
            torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-6)


def test_evaluation():
    settings = {"task": "choice", "n": 6, "n_samples": 2, "sampler": {"temperature": 1.0}}
    here = run_each([build(EvalConfig, settings)])[0]
    with cuda_stand_in():
        there = run_each([build(EvalConfig, settings)])[0]
    assert there["device"] == "CUDA stand-in"
    times = {"device", "environment", *(k for k in here if "second" in k or "time" in k)}
    assert not {k: (v, here[k]) for k, v in there.items() if k not in times and v != here[k]}


def test_likelihoods():
    pairs = [Pair([5, 6, 7], [8, 9, 10, 11], 1), Pair([5], [6], 2)]
    here = likelihood_bounds(load_model("embedded"), pairs, mc_num=4, cfg_scale=0.5)
    with cuda_stand_in():
        there = likelihood_bounds(load_model("embedded", device="cuda"), pairs, mc_num=4, cfg_scale=0.5)
    assert there == pytest.approx(here, rel=1e-5)


@pytest.mark.long
def test_supervised_training(tmp_path: Path):
    settings = {"tasks": {"choice": 1}, "model": "embedded", "steps": 3, "batch_size": 8, "logging_steps": 1}

    def train(where: str) -> list[float]:
        folder = tmp_path / where
        train_sft(build(SFTConfig, {**settings, "output_dir": str(folder), "threads": 1}))
        return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]

    here = train("here")
    with cuda_stand_in():
        assert train("there") == pytest.approx(here, rel=1e-4)


LOOKS = 1 / LOOK_EVERY["cuda"]


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        # The schedule says which rows are finished, where they stand and what is masked.
        ({}, 0),
        ({"cache": "dual"}, 0),
        # The loop looks for finished rows now and then. Without a plan the step asks where the rows' caches stand.
        ({"early_stop": "eos", "cache": "prefix"}, LOOKS),
        ({"threshold": 1.0}, LOOKS),
        ({"threshold": 1.0, "cache": "dual"}, 1 + LOOKS),
    ],
    ids=str,
)
def test_how_often_a_forward_waits_for_the_device(settings: dict[str, Any], waits: float, llada: Path):
    found = []
    with cuda_stand_in() as gpu:
        model = load_model(llada, device="cuda")
        for length in (4, 20 if waits == LOOKS else 12):
            gpu.waits = 0
            trajectory = rollout(
                model, [[5, 6, 7], [8, 9, 10]], SamplerConfig(gen_length=length, block_length=2, **settings), [1, 2]
            )
            found.append((gpu.waits, max(trajectory.nfe.tolist())))
    (few, short), (many, long) = found
    assert many - few == pytest.approx(waits * (long - short), abs=2 * (waits == LOOKS))


DYNAMIC: dict[str, Any] = {"remasking": "low_confidence_dynamic", "threshold": 0.9}


@pytest.mark.parametrize(
    "settings", soon([{}, {"threshold": 1.0}, DYNAMIC, {**DYNAMIC, "editing_threshold": 0.3}], 0, 1)
)
def test_stored_blocks_wait_for_the_device_only_to_look_for_finished_rows_and_edits(
    settings: dict[str, Any], llada: Path
):
    prompts, seeds = [[5, 6, 7], [8, 9, 10], [8, 9, 10], [4] * 9], [1, 2, 3, 4]
    sampler = SamplerConfig(gen_length=12, temperature=1.0, **settings)
    found = []
    for place in ("cpu", "cuda"):
        with cuda_stand_in() if place == "cuda" else contextlib.nullcontext() as gpu:
            model = load_model("embedded" if sampler.edits else llada, device=place)
            model.block_length = 4
            at = 0 if gpu is None else gpu.waits
            trajectory = rollout(model, prompts, sampler, seeds)
            waits = 0 if gpu is None else gpu.waits - at
            found.append(trajectory.to("cpu"))
    edits = ("edit_position", "edit_step", "edit_token") if sampler.edits else ()
    for name in ("tokens", "reveal_step", "nfe", "queries", *edits):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name
    blocks = (torch.tensor([len(p) % 4 for p in prompts]) + (found[0].reveal_step >= 0).sum(-1)) // 4
    forwards = int((found[0].nfe + blocks - 1).max())  # all rows run at once, and each stores all blocks but its last
    recording = forwards + 3 if edits else 0  # each forward asks where its edits are
    assert waits == math.ceil(LOOKS * forwards) + recording


@pytest.mark.parametrize(
    "settings", soon([{}, {"first_token": "masked"}, {"threshold": 0.5, "early_stop": "eos"}], 2), ids=str
)
def test_blocks_over_a_causal_context(settings: dict[str, Any], tmp_path: Path):
    """Rollouts, which wait only to look for finished rows, and the views and losses of a training step."""
    checkpoint = nemotron(tmp_path / "m")
    prompts, seeds = [[5, 6, 7], [8, 9, 10], [8, 9, 10], [4] * 9], [1, 2, 3, 4]
    sampler = SamplerConfig(gen_length=16, temperature=1.0, **settings)
    objective, signal = make_objective({"name": "lfpo"}), torch.tensor([1.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    found, losses = [], []
    for place in ("cpu", "cuda"):
        with cuda_stand_in() if place == "cuda" else contextlib.nullcontext() as gpu:
            model = load_model(checkpoint, device=place)
            at = 0 if gpu is None else gpu.waits
            trajectory = rollout(model, prompts, sampler, seeds)
            waits = 0 if gpu is None else gpu.waits - at
            views = objective.views(trajectory.in_rounds(), signal.to(place), seeds, 0)
            policies = {CURRENT: model, OLD: model}
            losses.append(accumulate_gradients(objective, policies, views, signal.to(place), update_tokens=4096)[0])
            found.append(trajectory.to("cpu"))
    for name in ("tokens", "reveal_step", "nfe", "queries"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    stores = 2 if settings.get("first_token") == "masked" else 0  # forwards that reveal nothing
    assert waits <= math.ceil(LOOKS * (int(found[0].nfe.max()) + stores)) + 1
