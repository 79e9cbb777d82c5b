"""Optimisers with small moments: against the plain one, through checkpoints, and where they cannot work."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open

from lfpo.config.build import build
from lfpo.config.errors import UserError
from lfpo.config.train import LFPOConfig
from lfpo.config.training import Optim, moment_bytes
from lfpo.core.optim import lr_at
from lfpo.models import load_model
from lfpo.train.adamw import build_adamw
from lfpo.train.checkpoint import TABLES, latest_checkpoint
from lfpo.train.rl import LFPOTrainer
from rank_runs import assert_same_run, run
from small_runs import choice_config as config
from small_runs import whole_and_resumed
from tiny import optimiser_settings, random_ids

installed = importlib.util.find_spec("bitsandbytes") is not None
needs_it = pytest.mark.skipif(not installed, reason="bitsandbytes is not installed")
SMALL = 4096  # tensors with fewer numbers keep float32 moments in bitsandbytes


def optimizer(model: torch.nn.Module, optim: Optim) -> torch.optim.Optimizer:
    return build_adamw(model, optimiser_settings(1e-2, 0.1, 0.99, optim))


def test_learning_rates_by_hand():
    def rates(schedule: str) -> list[float]:
        args = SimpleNamespace(learning_rate=8.0, lr_scheduler_type=schedule, warmup_steps=2)
        return [lr_at(args, step, total=6) for step in range(7)]

    assert rates("constant") == [4.0, *[8.0] * 6]
    assert rates("linear") == pytest.approx([4.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0])
    half = 8.0 * (1 + 0.5**0.5) / 2  # the cosine of an eighth of a turn
    assert rates("cosine") == pytest.approx([4.0, 8.0, 8.0, half, 4.0, 8.0 - half, 0.0])


@needs_it
def test_eight_bits_take_nearly_the_same_steps(llada: Path):
    models = [load_model(llada) for _ in range(2)]
    start = [p.detach().clone() for p in models[0].parameters()]
    optimizers = [optimizer(models[0], "adamw_torch"), optimizer(models[1], "adamw_8bit")]
    for step in range(4):
        for model, its in zip(models, optimizers, strict=True):
            model(random_ids(2, 6, seed=step)).square().mean().backward()
            its.step()
            its.zero_grad()
    for old, plain, small in zip(start, *(m.parameters() for m in models), strict=True):
        moved, apart = (plain - old).norm(), (plain - small).norm()
        assert moved > 0
        # Those of few numbers keep whole moments; codes of 8 bits are a few per cent off.
        assert apart < (1e-3 if plain.numel() < SMALL else 0.1) * moved
    quantised = [p for p in models[1].parameters() if p.numel() >= SMALL]
    assert len(quantised) == 2  # embeddings and head
    for p in quantised:
        fields = optimizers[1].state[p]
        assert fields["state1"].dtype == fields["state2"].dtype == torch.uint8
        held = sum(v.nbytes for k, v in fields.items() if isinstance(v, torch.Tensor) and k not in TABLES)
        assert held == pytest.approx(moment_bytes("adamw_8bit") * p.numel(), rel=1e-3)


@needs_it
@pytest.mark.long
def test_training_in_eight_bits_resumes_exactly(llada: Path, tmp_path: Path):
    small: dict[str, Any] = {"optim": "adamw_8bit"}
    whole, resumed = whole_and_resumed(tmp_path, llada, 2, **small)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])
    assert not torch.equal(load_model(llada).head_weight, whole.model.head_weight)
    saved = latest_checkpoint(tmp_path / "whole")
    assert saved is not None
    with safe_open(saved / "optimizer" / "optimizer.safetensors", framework="pt") as file:
        names = {name.partition(".")[2]: file.get_slice(name).get_dtype() for name in sorted(file.keys())}
    assert names.keys() == {"step", "state1", "state2", "absmax1", "absmax2"}
    with pytest.raises(UserError, match="moments of another optimiser"):
        LFPOTrainer(args=config(tmp_path / "whole", llada, max_steps=4)).train(resume=True)
    LFPOTrainer(args=config(tmp_path / "plain", llada, max_steps=1)).train()
    with pytest.raises(UserError, match="moments of another optimiser"):
        LFPOTrainer(args=config(tmp_path / "plain", llada, max_steps=2, **small)).train(resume=True)


def test_where_it_cannot_work(llada: Path, monkeypatch: pytest.MonkeyPatch):
    model = load_model(llada)
    with pytest.raises(UserError, match="without a GPU take adamw_8bit"):
        optimizer(model, "paged_adamw_8bit")
    # Adapters are whole on every process.
    build(LFPOConfig, {"output_dir": "x", "fsdp": True, "optim": "adamw_8bit", "lora": {"r": 2}})
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match="pip install bitsandbytes"):
        optimizer(model, "adamw_8bit")


@needs_it
@pytest.mark.long
@pytest.mark.parametrize("settings", [("--fsdp", "true", "--lora", "{r: 128, lora_alpha: 128}"), ()])
def test_two_processes_step_as_one(settings: tuple[str, ...], llada: Path, tmp_path: Path):
    """Adapters are whole on each process though the layers are split; without fsdp everything is."""
    for name, processes in (("one", 1), ("two", 2)):
        here = ["false" if processes == 1 and value == "true" else value for value in settings]
        folder = tmp_path / name
        process = run(folder, llada, processes, "--max_steps", "2", "--optim", "adamw_8bit", *here)
        assert process.returncode == 0, process.stderr
    assert_same_run(tmp_path / "one", tmp_path / "two")
