"""Real processes, two and three of them, over gloo: the same run as in one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

import tiny
from lfpo.base import distributed
from lfpo.base.errors import UserError
from lfpo.runs.directory import open_run, opened_by_this_launcher
from lfpo.train.config import LFPOConfig
from lfpo.train.rl import LFPOTrainer

ROOT = Path(__file__).parents[1]
ARGUMENTS = [
    *("train", "choice", "--prompts_per_iteration", "3", "--num_generations", "4", "--eval_size", "4"),
    *(
        "--reward_funcs",
        "[reward_samples.even_tokens]",
        "--eval_steps",
        "1",
        "--save_steps",
        "1",
        "--threads",
        "1",
        "--learning_rate",
        "1e-2",
    ),
    *("--optimizer_steps_per_iteration", "2", "--objective.timesteps", "2", "--lr_scheduler_type", "constant"),
]


def run(folder: Path, model: Path, processes: int, *more: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--max-restarts={restarts}"]
    launcher = [] if processes == 1 else [*torchrun, f"--nproc_per_node={processes}"]
    command = [sys.executable, *launcher, "-m", "lfpo", *ARGUMENTS, "--model", str(model)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--output_dir", str(folder), *more],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def assert_same_run(folder: Path, other: Path) -> None:
    mine, theirs = metrics(folder), metrics(other)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            # Sums in another order: gradients differ in their last bits, rollouts do not.
            summed = name.startswith(("loss", "grad_norm", "kl/", "entropy/targets", "p_target", "negatives/"))
            assert b[name] == pytest.approx(value, rel=1e-4 if summed else 1e-9, abs=1e-7 if summed else 1e-9), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    llada = tiny.write_llada(folder.parent / "llada")  # random weights, the same ones every time
    process = run(folder, llada, 1, "--max_steps", "3")
    assert process.returncode == 0, process.stderr
    assert all(row["grad_norm"] > 0.01 for row in metrics(folder)[1:])
    return folder


@pytest.mark.parametrize(("processes", "fsdp"), [(3, "false"), (2, "true")])
def test_several_processes_train_as_one(processes: int, fsdp: str, alone: Path, llada: Path, tmp_path: Path):
    process = run(tmp_path / "run", llada, processes, "--max_steps", "3", "--fsdp", fsdp)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("model  ") == 1  # one process speaks
    assert_same_run(alone, tmp_path / "run")


def test_a_checkpoint_of_two_processes_resumes_on_one_and_on_three(alone: Path, llada: Path, tmp_path: Path):
    first = run(tmp_path / "two", llada, 2, "--max_steps", "2", "--fsdp", "true")
    assert first.returncode == 0, first.stderr
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    for name, processes, fsdp in (("two", 1, "false"), ("three", 3, "true")):
        process = run(tmp_path / name, llada, processes, "--max_steps", "3", "--fsdp", fsdp, "--resume")
        assert process.returncode == 0, process.stderr
        assert_same_run(alone, tmp_path / name)


def test_adapters_train_the_same_over_split_layers(llada: Path, tmp_path: Path):
    lora = ("--lora", "{r: 2, lora_alpha: 4}", "--max_steps", "2")
    for name, processes, fsdp in (("one", 1, "false"), ("split", 2, "true")):
        process = run(tmp_path / name, llada, processes, "--fsdp", fsdp, *lora)
        assert process.returncode == 0, process.stderr
    assert_same_run(tmp_path / "one", tmp_path / "split")


def test_more_processes_than_prompts_is_one_error(llada: Path, tmp_path: Path):
    process = run(tmp_path / "run", llada, 2, "--prompts_per_iteration", "1", "--num_generations", "8")
    assert process.returncode != 0
    told = [line for line in process.stderr.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "2 processes for 1 prompts_per_iteration" in told[0]
    alone = run(tmp_path / "other", llada, 1, "--fsdp", "true")
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "torchrun" in alone.stderr


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_run_ends_as_if_nothing_was(alone: Path, llada: Path, tmp_path: Path):
    folder, marker = tmp_path / "run", tmp_path / "killed"
    # Another name drops the recipe's knobs: the same again.
    failing = ["--objective.name", "failing:Failing", "--objective.beta", "0.3", "--objective.clip", "2.0"]
    failing += ["--objective.after", str(folder / "checkpoints/step-1")]
    process = run(
        folder, llada, 2, "--max_steps", "3", "--fsdp", "true", *failing, "--objective.marker", str(marker), restarts=1
    )
    assert marker.exists()
    assert process.returncode == 0, process.stderr
    assert "resumed from" in process.stdout
    assert "failed (exitcode: -9) local_rank: 1" in process.stderr  # torchrun names the rank
    assert_same_run(alone, folder)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [pytest.param("rejection", marks=pytest.mark.long), "trace_rl"])
def test_split_over_processes_of_which_one_has_nothing_to_learn_from(objective: str, llada: Path, tmp_path: Path):
    folder = tmp_path / "run"
    process = run(
        *(folder, llada, 2, "--max_steps", "1", "--optimizer_steps_per_iteration", "1", "--fsdp", "true"),
        *("--objective", f"{{name: {objective}}}", "--reward_funcs", "[reward_samples.one_right]"),
    )
    assert process.returncode == 0, process.stderr
    assert metrics(folder)[1]["grad_norm"] > 0


def test_a_restart_does_not_continue_a_run_of_another_launcher(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    args = LFPOConfig(output_dir=str(tmp_path / "run"), model=str(llada), task="choice", max_steps=1, eval_size=1)
    run_dir = open_run(tmp_path / "run", args, resume=False, kind="train").dir
    assert opened_by_this_launcher(run_dir)
    assert not opened_by_this_launcher(tmp_path)
    info = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps({**info, "launcher": info["launcher"] + "1"}))
    assert not opened_by_this_launcher(run_dir)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "some-id")
    with pytest.raises(UserError, match="holds another run"):
        LFPOTrainer(args=args).train()


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_where_no_process_has_a_gradient_nothing_moves(group: None):
    weights = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    weights[0].grad = torch.ones(2)
    distributed.sum_gradients(weights)
    assert [p.grad.tolist() for p in weights if p.grad is not None] == [[1, 1], [0, 0, 0]]
    optimizer.step()
    optimizer.zero_grad()
    moved = [p.detach().clone() for p in weights]
    assert not torch.equal(moved[0], torch.ones(2))
    distributed.sum_gradients(weights)
    assert all(p.grad is None for p in weights)
    optimizer.step()  # with momentum from before
    assert all(torch.equal(a, b) for a, b in zip(weights, moved, strict=True))


def test_a_norm_is_that_of_all_gradients_in_pieces_too():
    weight = torch.nn.Parameter(torch.zeros(2**24 + 3))
    weight.grad = torch.full((2**24 + 3,), 2.0)
    norm = 2 * (2**24 + 3) ** 0.5
    assert distributed.clip_gradients([weight], 0) == pytest.approx(norm, rel=1e-12)
    assert distributed.clip_gradients([weight], 1.0) == pytest.approx(norm, rel=1e-12)
    assert float(weight.grad[0]) == pytest.approx(2 / norm, rel=1e-5)


@pytest.mark.slow
def test_a_process_without_memory_says_so_alone_and_none_hangs(llada: Path, tmp_path: Path):
    failing = ("--objective.name", "failing:Failing", "--objective.how", "out of memory", "--objective.after", "/")
    process = run(
        tmp_path / "run", llada, 2, *failing, "--objective.marker", str(tmp_path / "marker"), "--fsdp", "true"
    )
    assert process.returncode != 0
    told = [line for line in process.stderr.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "process 1: out of memory (CUDA out of memory. Tried to allocate 20.00 GiB.)" in told[0]
    assert "`lfpo plan` counts" in told[0]
    assert "]: Traceback" not in process.stderr


def test_a_share_that_cannot_be_written_stops_all(tmp_path: Path):
    """Two processes write a file each; the second's is in the way. One speaks, and nobody waits."""
    (tmp_path / "out" / "t-00002-of-00002.safetensors").mkdir(parents=True)
    code = (
        "import torch; from pathlib import Path\n"
        "from lfpo.base import distributed; from lfpo.models.tensor_files import write_shards\n"
        "distributed.start(); t = {n: torch.ones(4) for n in 'ab'}\n"
        f"write_shards(t, t.__getitem__, Path({str(tmp_path / 'out')!r}), 't')\n"
    )
    (tmp_path / "write.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.run(
        [*command, str(tmp_path / "write.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert process.returncode != 0
    assert "[rank1]: Traceback" in process.stderr
    assert "[rank0]: Traceback" not in process.stderr
    assert (tmp_path / "out" / "t-00001-of-00002.safetensors").is_file()
