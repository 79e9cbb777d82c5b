"""Training in two and three ranks over gloo gives the same run as one process; and the collectives themselves."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

import tiny
from lfpo.base import distributed
from lfpo.config.dpo import DPOConfig
from lfpo.config.errors import UserError
from lfpo.config.sampler import SamplerConfig
from lfpo.config.sft import SFTConfig
from lfpo.config.train import LFPOConfig
from lfpo.core import collectives, optim, rank_tensors
from lfpo.models import tensor_files
from lfpo.models.tensor_files import write_shards
from lfpo.train.dpo import DPOTrainer
from lfpo.train.rl import LFPOTrainer
from lfpo.train.run import TrainingRun
from lfpo.train.sft import SFTTrainer
from processes import SECONDS, environment, run_ranks
from rank_runs import ARGUMENTS, assert_same_run, metrics, run
from reward_samples import even_tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("distributed") / "llada")


@pytest.fixture(scope="module")
def alone(model: Path) -> Path:
    """Two iterations in one process."""
    folder = model.parent / "alone"
    run(folder, model, 1)
    assert all(row["grad_norm"] > 0.01 for row in metrics(folder)[1:])
    return folder


@pytest.fixture(scope="module")
def sharded(model: Path) -> Path:
    """Two iterations in two ranks with FSDP."""
    folder = model.parent / "sharded"
    process = run(folder, model, 2, "--fsdp", "true")
    assert process.stdout.count(" parameters, float32") == 1  # rank 0 alone prints
    return folder


def test_two_ranks_with_fsdp_train_as_one(alone: Path, sharded: Path):
    assert_same_run(alone, sharded)


@pytest.mark.long
def test_ranks_that_gather_layer_by_layer_in_rollouts_train_as_one(model: Path, alone: Path, tmp_path: Path):
    """Three prompts and four held-out problems on two ranks, which run different numbers of forwards."""
    run(tmp_path / "run", model, 2, "--fsdp", "true", "--rollout_gather", "layer")
    assert_same_run(alone, tmp_path / "run")


@pytest.mark.long
def test_three_ranks_train_as_one(model: Path, alone: Path, tmp_path: Path):
    process = run(tmp_path / "run", model, 3)
    assert process.stdout.count(" parameters, float32") == 1
    assert_same_run(alone, tmp_path / "run")


@pytest.mark.long
def test_accelerate_launch_starts_ranks_as_torchrun_does(model: Path, alone: Path, tmp_path: Path):
    """--multi_gpu: without it accelerate starts one process where there are no GPUs."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        launch += ["--main_process_port", str(free.getsockname()[1])]
    launch += ["-m", "lfpo", *ARGUMENTS]
    launch += ["--model", str(model), "--output_dir", str(tmp_path / "run")]
    ended = subprocess.run(launch, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(" parameters, float32") == 1 and ", 2 ranks" in ended.stdout
    assert_same_run(alone, tmp_path / "run")


@pytest.mark.parametrize(("ranks", "fsdp"), [(1, "false"), pytest.param(3, "true", marks=pytest.mark.long)])
def test_a_checkpoint_of_two_ranks_resumes_on_one_and_on_three(
    ranks: int, fsdp: str, model: Path, alone: Path, sharded: Path, tmp_path: Path
):
    folder = tmp_path / "run"
    shutil.copytree(sharded, folder)
    shutil.rmtree(folder / "checkpoints" / "step-2")
    process = run(folder, model, ranks, "--fsdp", fsdp, "--resume")
    assert "step-1" in process.stdout
    assert_same_run(alone, folder)


@pytest.mark.long
def test_adapters_train_the_same_over_split_layers(model: Path, tmp_path: Path):
    """With the adapter apart in one process, and merged for rollouts over split layers."""
    lora = ("--lora", "{r: 2, lora_alpha: 4}")
    for name, ranks, more in (("one", 1, ()), ("split", 2, ("--fsdp", "true", "--merge_lora", "true"))):
        run(tmp_path / name, model, ranks, *more, *lora)
    assert_same_run(tmp_path / "one", tmp_path / "split")


@pytest.mark.long
def test_two_copies_of_two_parts_train_and_resume_as_one_process(model: Path, tmp_path: Path):
    sizes = ("--prompts_per_iteration", "4")
    split = ("--fsdp", "true", "--fsdp_size", "2")
    for name, ranks, more in (("one", 1, ()), ("split", 4, split)):
        run(tmp_path / name, model, ranks, *sizes, *more)
    assert_same_run(tmp_path / "one", tmp_path / "split")
    shutil.rmtree(tmp_path / "split" / "checkpoints" / "step-2")
    process = run(tmp_path / "split", model, 4, *sizes, *split, "--resume")
    assert "step-1" in process.stdout
    assert_same_run(tmp_path / "one", tmp_path / "split")


def test_more_processes_than_prompts_is_one_error(model: Path, tmp_path: Path):
    process = run(tmp_path / "run", model, 2, "--prompts_per_iteration", "1", "--num_generations", "8", code=2)
    told = [line for line in process.stderr.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "2 ranks for 1 prompts_per_iteration" in told[0]
    alone = run(tmp_path / "other", model, 1, "--fsdp", "true", code=2)
    assert alone.stderr.count("\n") == 1
    assert "torchrun" in alone.stderr


@pytest.mark.long
def test_ranks_that_their_launcher_starts_again_resume_and_end_the_same(alone: Path, model: Path, tmp_path: Path):
    """As torchrun does when a rank is killed."""
    folder, marker = tmp_path / "run", tmp_path / "killed"
    failing = ["--objective.name", "failing:Failing"]
    failing += ["--objective.after", str(folder / "checkpoints/step-1"), "--objective.marker", str(marker)]
    arguments, launched = [*failing, "--fsdp", "true"], {"TORCHELASTIC_RUN_ID": "some-id"}
    lost = run(folder, model, 2, *arguments, code=75, **launched, TORCHELASTIC_RESTART_COUNT="0")
    assert marker.exists()
    assert "lost: rank 1 ended" in lost.stderr
    ended = run(folder, model, 2, *arguments, **launched, TORCHELASTIC_RESTART_COUNT="1")
    assert "resumed from" in ended.stdout
    assert_same_run(alone, folder)


@pytest.mark.long
@pytest.mark.parametrize("objective", ["rejection", "trace_rl"])
def test_split_over_ranks_of_which_one_has_nothing_to_learn_from(objective: str, model: Path, tmp_path: Path):
    folder = tmp_path / "run"
    run(
        *(folder, model, 2, "--max_steps", "1", "--optimizer_steps_per_iteration", "1", "--fsdp", "true"),
        *("--objective", f"{{name: {objective}}}", "--reward_funcs", "[reward_samples.one_right]"),
    )
    assert metrics(folder)[1]["grad_norm"] > 0


def rows_of_a_rank(model: str, folder: str) -> None:
    """Print what becomes of trainers whose rows differ between the ranks, and of one whose rows do not."""
    distributed.start()
    rank = collectives.rank()
    plain, turned = ([{"prompt": text} for text in texts] for texts in ("abcd", "abcd" if rank == 0 else "bacd"))
    files = {}
    for kind, fields in (("sft", {"completion": "x"}), ("dpo", {"chosen": "x", "rejected": "y"})):
        files[kind] = Path(folder) / f"{kind}-{rank}.jsonl"
        files[kind].write_text("".join(json.dumps({**row, **fields}) + "\n" for row in turned[: 4 - rank]))
    of_0 = str(files["dpo"]).replace("dpo-1", "dpo-0")
    every = {"model": model, "output_dir": f"{folder}/run", "max_steps": 1}
    pairs = {**every, "gen_length": 8, "eval_steps": 1}
    args = LFPOConfig(
        **every, sampler=SamplerConfig(gen_length=8, temperature=1.0), prompts_per_iteration=2, eval_steps=1
    )
    sft = SFTConfig(model=model, output_dir=f"{folder}/run", data_file=str(files["sft"]), gen_length=8, steps=1)
    makes = {
        "train": lambda: LFPOTrainer(None, even_tokens, args, turned, plain),
        "generator": lambda: LFPOTrainer(None, even_tokens, args, (row for row in turned), plain),  # type: ignore[arg-type]
        "held-out": lambda: LFPOTrainer(None, even_tokens, args, plain, turned),
        "sft": lambda: SFTTrainer(sft),
        "dpo": lambda: DPOTrainer(DPOConfig(**pairs, data_file=str(files["dpo"]), eval_file=of_0)),
        "pairs": lambda: DPOTrainer(DPOConfig(**pairs, data_file=of_0, eval_file=str(files["dpo"]))),
        "the same": lambda: LFPOTrainer(None, even_tokens, args, plain, plain),
    }
    for name, make in makes.items():
        distributed.barrier()
        try:
            TrainingRun(make(), resume=False, display=None)
            print(f"{name}: starts")
        except UserError as error:
            print(f"{name}: {error}")
        assert (Path(folder) / "run").exists() == (name == "the same")
        distributed.barrier()


def test_rows_that_differ_between_ranks_are_one_error(model: Path, tmp_path: Path):
    parts = run_ranks(2, rows_of_a_rank, str(model), str(tmp_path))
    assert [part.returncode for part in parts] == [0, 0], parts
    for part in parts:
        told = dict(line.split(": ", 1) for line in part.stdout.splitlines() if ": " in line)
        for name, rows in (("train", "training"), ("generator", "training"), ("held-out", "held-out")):
            assert told[name].startswith(f"the {rows} rows, or their order, differ between the ranks: rank 0 has ")
        assert re.search("the training rows.* rank 0 has 4 rows, .* rank 1 has 3 rows, .* sort them", told["sft"])
        assert re.search("the training rows.* rank 0 has 4 rows, .* rank 1 has 3 rows", told["dpo"])
        assert re.search("the held-out rows.* rank 0 has 4 rows, .* rank 1 has 3 rows", told["pairs"])
        assert told["the same"] == "starts"


def test_where_no_process_has_a_gradient_nothing_moves(group: None):
    weights = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    weights[0].grad = torch.ones(2)
    rank_tensors.sum_gradients(weights)
    assert [p.grad.tolist() for p in weights if p.grad is not None] == [[1, 1], [0, 0, 0]]
    optimizer.step()
    optimizer.zero_grad()
    moved = [p.detach().clone() for p in weights]
    assert not torch.equal(moved[0], torch.ones(2))
    rank_tensors.sum_gradients(weights)
    assert all(p.grad is None for p in weights)
    optimizer.step()  # with momentum from before
    assert all(torch.equal(a, b) for a, b in zip(weights, moved, strict=True))


def test_a_norm_is_that_of_all_gradients_in_pieces_too():
    weight = torch.nn.Parameter(torch.zeros(2**24 + 3))
    weight.grad = torch.full((2**24 + 3,), 2.0)
    norm = 2 * (2**24 + 3) ** 0.5
    assert optim.clip_gradients([weight], 0) == pytest.approx(norm, rel=1e-12)
    assert optim.clip_gradients([weight], 1.0) == pytest.approx(norm, rel=1e-12)
    assert float(weight.grad[0]) == pytest.approx(2 / norm, rel=1e-5)


@pytest.mark.long
def test_a_rank_without_memory_says_so_alone_and_none_hangs(model: Path, tmp_path: Path):
    failing = ["--objective.name", "failing:Failing", "--objective.how", "out of memory", "--objective.after", "/"]
    failing += ["--objective.marker", str(tmp_path / "marker")]
    process = run(tmp_path / "run", model, 2, *failing, "--fsdp", "true", code=75)
    told = [line for line in process.stderr.splitlines() if line.startswith("error:")]
    assert len(told) == 1
    assert "process 1: out of memory (CUDA out of memory. Tried to allocate 20.00 GiB.)" in told[0]
    assert "`lfpo plan` with the same keys says what takes the memory" in told[0]
    assert "Traceback" not in process.stderr


def write_two(folder: Path) -> None:
    distributed.start()
    tensors = {name: torch.ones(4) for name in "ab"}
    write_shards(tensors, folder, "t")


def gather_in_pieces() -> None:
    """Five rows of twelve bytes over four ranks, of which the last holds none, a row at a time."""
    distributed.start()
    rows = torch.arange(15.0).view(5, 3)
    split = distribute_tensor(rows, distributed.mesh(), [Shard(0)])
    tensor_files.PIECE_BYTES = 32
    for writer in range(4):
        found = tensor_files.whole_on(split, writer)
        assert (found is not None) == (collectives.rank() == writer)
        assert found is None or torch.equal(found, rows)
    distributed.stop()


@pytest.mark.long
def test_ranks_without_rows_take_part_in_a_gather():
    assert [rank.returncode for rank in run_ranks(4, gather_in_pieces)] == [0] * 4


def test_a_share_that_cannot_be_written_stops_all(tmp_path: Path):
    """Two ranks write a file each; a folder stands where rank 1 writes. It raises, and rank 0 does not wait for it."""
    folder = tmp_path / "out"
    (folder / "t-00002-of-00002.safetensors").mkdir(parents=True)
    first, second = run_ranks(2, write_two, folder)
    assert (first.returncode, first.stderr) == (2, "")
    assert second.returncode == 1 and "IsADirectoryError" in second.stderr
    assert (folder / "t-00001-of-00002.safetensors").is_file()


def gathers_and_sums() -> None:
    distributed.start()
    rank = collectives.rank()
    for lengths in ([2, 0, 3], [0, 0, 0]):
        whole = torch.arange(sum(lengths) * 4).view(-1, 2, 2)
        assert torch.equal(rank_tensors.all_gather_tensor(whole.split(lengths)[rank]), whole)
    assert collectives.sum_number(rank + 0.5) == 4.5


def test_tensors_of_all_ranks():
    ended = run_ranks(3, gathers_and_sums)
    assert [rank.returncode for rank in ended] == [0] * 3, ended


def test_more_ranks_than_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch):
    ranks = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    ranks |= {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="4 ranks on a machine with 2 GPUs: give torchrun --nproc_per_node 2"):
        distributed.start()


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_what_a_scheduler_says_of_one_process_is_no_group(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    for name in distributed.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    distributed.start()
    assert not torch.distributed.is_initialized()
