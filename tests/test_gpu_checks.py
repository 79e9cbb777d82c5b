"""The small form of `make test-gpu`: each check passes here, and fails when what it checks is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import gpu.agreement
import gpu.attention
import gpu.fsdp
import gpu.loss
import gpu.rollouts
import lfpo.models.attention
import lfpo.objectives.ops.fused
import lfpo.rollout.denoise
import lfpo.train.algorithm
from gpu.checks import CHECKS
from gpu.command import failed, in_own_process, main, markdown, run_checks
from gpu.rows import Machine, at_least, at_most, measured
from lfpo.models import load_model
from lfpo.models.lora import attach
from lfpo.models.structure import Structure
from lfpo.rollout.denoise import LOOK_EVERY

SMALL = Machine(gpu=False)
# tests/test_plan.py measures memory against the plan in `make test`, by the same function.
LONG = {"losses-agree", "rollouts-agree", "fsdp", "rollout", "rollout-8b", "memory-lora", "memory-4-bit", "memory-full"}
LONG_WHEN_BROKEN = LONG | {"waits"}
Patch = pytest.MonkeyPatch


def by_cost(names: Any, long: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in long else []) for name in names]


@pytest.mark.parametrize("name", by_cost(CHECKS, LONG))
def test_a_check_passes(name: str):
    rows = CHECKS[name].run(SMALL)
    assert rows and not failed(rows)
    assert any(row["passed"] or row["value"].startswith("not run: ") for row in rows)


def rounded_products(patch: Patch) -> None:
    patch.setattr(torch.Tensor, "float", lambda x: x.to(torch.bfloat16).to(torch.float32))


def other_weights_on_the_device(patch: Patch) -> None:
    def load(name: str, device: str) -> Any:
        model = load_model(name, device=device)
        if device != "cpu":
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1.05)
        return model

    patch.setattr(gpu.agreement, "load_model", load)


def the_math_kernel(patch: Patch) -> None:
    found = lfpo.models.attention.bidirectional_attention

    def slow(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return found(*args, **kwargs)

    patch.setattr(gpu.attention, "bidirectional_attention", slow)


def rows_that_see_each_other(patch: Patch) -> None:
    def joined(query: Any, key: Any, value: Any, packed: Any, scaling: Any) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, scale=scaling, enable_gqa=True).transpose(1, 2)

    patch.setattr(lfpo.models.attention, "_packed_attention", joined)


def causal_rows(patch: Patch) -> None:
    patch.setattr(Structure, "flex", lambda self, real, flex=Structure.flex: flex(Structure(1), real))


def one_sign_turned(patch: Patch) -> None:
    fused = lfpo.objectives.ops.fused
    found = fused._branches
    patch.setattr(fused, "_branches", lambda *args: [(-sign, share) for sign, share in found(*args)])


def a_kernel_that_forgets_the_reference(patch: Patch) -> None:
    from lfpo.objectives.ops import kernel

    found = kernel.loss_and_gradient
    patch.setattr(kernel, "loss_and_gradient", lambda z, z_old, *rest, **dtype: found(z, z, *rest, **dtype))


def a_loop_that_takes_the_second_best(patch: Patch) -> None:
    found = lfpo.rollout.denoise.rollout

    def wrong(*args: Any, **kwargs: Any) -> Any:
        trajectory = found(*args, **kwargs)
        trajectory.tokens[0, 0] += 1
        return trajectory

    patch.setattr("benchmarks.modes.rollout", wrong)


def a_look_after_each_step(patch: Patch) -> None:
    patch.setitem(LOOK_EVERY, "cuda", 1)


def an_adapter_that_adds_something(patch: Patch) -> None:
    def attached(*args: Any, **kwargs: Any) -> Any:
        policy = attach(*args, **kwargs)
        with torch.no_grad():
            for name, p in policy.backbone.named_parameters():
                if "lora_B" in name:
                    p.fill_(1.0)
        return policy

    patch.setattr(gpu.rollouts, "attach", attached)


def a_pass_that_holds_more(patch: Patch) -> None:
    found = lfpo.train.algorithm.accumulate_gradients

    def heavy(*args: Any, **kwargs: Any) -> Any:
        held = torch.zeros(2**22)
        return found(*args, **kwargs), held.sum()

    patch.setattr(lfpo.train.algorithm, "accumulate_gradients", lambda *a, **k: heavy(*a, **k)[0])


def another_rate_under_torchrun(patch: Patch) -> None:
    found = gpu.fsdp._train

    def train(folder: Path, *more: str, ranks: bool = False) -> list[float]:
        return found(folder, *more, *(["--learning_rate", "0.01"] if ranks else []), ranks=ranks)

    patch.setattr(gpu.fsdp, "_train", train)


BREAKAGES: dict[str, Callable[[Patch], None]] = {
    "device": rounded_products,
    "rollouts-agree": other_weights_on_the_device,
    "losses-agree": other_weights_on_the_device,
    "attention": the_math_kernel,
    "packed": rows_that_see_each_other,
    "blocks": causal_rows,
    "loss": one_sign_turned,
    "loss-kernel": a_kernel_that_forgets_the_reference,
    "rollout": a_loop_that_takes_the_second_best,
    "waits": a_look_after_each_step,
    "fsdp": another_rate_under_torchrun,
    "rollout-8b": an_adapter_that_adds_something,
    "memory-lora": a_pass_that_holds_more,
    "memory-4-bit": a_pass_that_holds_more,
    "memory-full": a_pass_that_holds_more,
}


@pytest.mark.parametrize("name", by_cost(BREAKAGES, LONG_WHEN_BROKEN))
def test_a_check_fails_when_its_subject_is_broken(name: str, monkeypatch: Patch):
    if name == "memory-4-bit":
        pytest.importorskip("bitsandbytes")
    if name == "loss-kernel":
        pytest.importorskip("triton")
    BREAKAGES[name](monkeypatch)
    assert failed(CHECKS[name].run(SMALL))


def test_every_check_can_be_broken():
    assert set(BREAKAGES) == set(CHECKS)


def test_results_are_kept_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
):
    """Each check's process is replaced by a fixed result here."""
    ran: list[str] = []

    def process(name: str, folder: Path, *, seconds: float) -> Any:
        ran.append(name)
        return [at_most("time", 2.0 if name == "loss" else 9.0, 5.0, "ms"), measured("speed", 3.0, "GB/s")]

    monkeypatch.setattr("gpu.command.in_own_process", process)
    minutes = (CHECKS["device"].seconds + 1) / 60  # too little for a longer check
    assert run_checks(SMALL, ["device", "rollout-8b"], minutes, tmp_path, again=False) == 1
    assert ran == ["device"] and "no time left for: rollout-8b" in " ".join(capsys.readouterr().out.split())
    assert run_checks(SMALL, ["device", "loss"], 25, tmp_path, again=False) == 1
    assert ran == ["device", "loss"]
    assert run_checks(SMALL, ["device"], 25, tmp_path, again=True) == 1
    assert ran == ["device", "loss", "device"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {"device", "loss"} and results["loss"]["gpu"] is False
    lines = markdown(results).splitlines()
    assert "| device | time | 9 ms | at most 5 ms | FAILED |" in lines
    assert "| loss | speed | 3 GB/s |  |  |" in lines
    # Results of a machine without a GPU are none of one with it.
    assert run_checks(Machine(gpu=True), ["loss"], 25, tmp_path, again=False) == 0
    assert ran[-1] == "loss" and set(json.loads((tmp_path / "results.json").read_text())) == {"loss"}


@pytest.mark.parametrize(
    ("ends", "value"),
    [
        ("import sys; sys.exit('MemoryError: no room')", "died: MemoryError: no room (see loss.log)"),
        ("import os; os._exit(3)", "died: exit code 3 (see loss.log)"),
        ("import time; time.sleep(60)", "not ended after 1 s"),
    ],
)
def test_a_check_that_dies_is_a_failed_row(ends: str, value: str, tmp_path: Path, monkeypatch: Patch):
    (tmp_path / "gpu.py").write_text(ends)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rows = in_own_process("loss", tmp_path, seconds=1)
    assert failed(rows) and rows[0]["value"] == value


def test_bars():
    assert at_most("x", 1.0, 1.0)["passed"] and not at_most("x", 1.1, 1.0)["passed"]
    assert at_least("x", 1.0, 1.0)["passed"] and not at_least("x", 0.9, 1.0)["passed"]
    assert not at_most("x", float("nan"), 1.0)["passed"] and not at_least("x", float("nan"), 1.0)["passed"]


def test_an_unknown_check_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--only", "looss"])
    assert "no check 'looss'; valid: device, " in capsys.readouterr().err
