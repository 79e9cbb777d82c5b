"""The command line as a user meets it: what works, and every mistake as one line and exit code 2."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lfpo.base.environment import before_torch
from lfpo.cli.command_line import main
from lfpo.cli.commands import COMMANDS
from processes import environment, run_lfpo
from train_arguments import train_arguments


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail: exit code 2, exactly one line on standard error, which is returned."""

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        return lines[0]

    return run


def test_train_writes_a_run_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(train_arguments(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "step 1/1" in printed
    assert "\x1b" not in printed  # no control characters without a terminal
    run = tmp_path / "run"
    for name in ("config.yaml", "metrics.jsonl", "rollouts/step-1.jsonl", "checkpoints/step-1/manifest.json"):
        assert (run / name).exists()
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(run)]) == 0
    assert main(train_arguments(tmp_path, max_steps="2", resume="true")) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3


def test_sample_shows_steps(capsys: pytest.CaptureFixture[str]):
    assert main(["sample", "--task", "sudoku", "--show_steps", "true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step ") for line in lines) == 16
    assert "16 steps, 16 forwards" in lines[-1]


def test_sample_gives_the_verdict_on_a_task_and_draws_a_sudoku(capsys: pytest.CaptureFixture[str]):
    verdicts = []
    for index in ("0", "1", "2", "3", "4", "5"):
        assert main(["sample", "--task", "sudoku", "--index", index, "--sampler.steps", "1"]) == 0
        printed = capsys.readouterr().out
        verdicts.append(re.findall(r"^verdict: (\w+)$", printed, re.MULTILINE))
        grids = [line.split() for line in printed.splitlines() if line.count("│") == 3]
        assert len(grids) == 4
        wrong = sum(a != b for row in grids for a, b in zip(row[5:10], row[10:15], strict=True))
        assert verdicts[-1] == ["wrong" if wrong else "right"]
    assert {v[0] for v in verdicts} == {"right", "wrong"}
    assert main(["sample", "--task", "choice"]) == 0
    assert "verdict: " in capsys.readouterr().out


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "loads and samples" in printed
    assert "MPS" not in printed
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("lfpo.cli.doctor._try_embedded", lambda: "")
    monkeypatch.setattr("lfpo.cli.doctor.available_rungs", list)
    assert main(["doctor"]) == 0
    assert "MPS lacks; lfpo runs on the CPU" in " ".join(capsys.readouterr().out.split())


def test_training_without_evaluation_does_not_read_the_test_split(
    llada: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lfpo.prompts.tasks.task.Task.test_rows", lambda self, n: [{}] * n)  # any row would fail
    for number, change in enumerate(({"eval_steps": "0"}, {"eval_samplers": "{}"}, {"eval_size": "0"})):
        where = {"output_dir": str(tmp_path / str(number)), "model": str(llada)}
        assert main(train_arguments(tmp_path, **where, **change)) == 0
        assert "eval" not in (tmp_path / str(number) / "metrics.jsonl").read_text()
        assert (tmp_path / str(number) / "report.html").exists()


def test_no_command_prints_usage(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert "lfpo COMMAND" in capsys.readouterr().out


def without_reader(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "lfpo", *arguments]
    done = subprocess.run(command, env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    ["train --help", "recipes", pytest.param("plan sudoku --tflops 1 --tflops_float32 1", marks=pytest.mark.long)],
)
def test_output_that_nobody_reads_ends_in_silence(command: str):
    assert without_reader(*command.split()) == (128 + signal.SIGPIPE, "")


def into(target: str, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard output is redirected by a shell: `>/dev/full`."""
    command = ["sh", "-c", f'"$@" {target}', "sh", sys.executable, "-m", "lfpo", *arguments]
    done = subprocess.run(command, env=environment(), stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@needs_full
@pytest.mark.long
def test_a_run_goes_on_when_its_output_cannot_be_written(tmp_path: Path):
    code, error = into(">/dev/full", *train_arguments(tmp_path))
    assert code == 0 and (tmp_path / "run" / "report.html").exists()
    told = "standard output cannot be written (No space left on device); the run goes on, and its folder says how\n"
    assert error == told


@pytest.mark.long
def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path: Path):
    code, error = without_reader(*train_arguments(tmp_path))
    assert (code, error.count("\n")) == (0, 1)
    assert "nobody reads" in error
    assert (tmp_path / "run" / "checkpoints" / "step-1" / "manifest.json").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_keep_going_trains_although_a_reward_raises_at_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rewards = "[reward_samples.raises,reward_samples.even_tokens]"
    assert main(train_arguments(tmp_path, reward_funcs=rewards, keep_going="true")) == 0
    assert "'raises' failed on its first call" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["rewards/raises/failed"] for row in lines if "reward" in row] == [1.0]


def test_a_mistake_found_before_anything_was_logged_leaves_the_folder_free(fails: Callable[..., str], tmp_path: Path):
    long = {"sampler.gen_length": "1000", "sampler.block_length": "1000"}
    assert "exceeds the model's context" in fails(*train_arguments(tmp_path, **long))
    assert "exceeds the model's context" in fails(*train_arguments(tmp_path, **long))
    assert main(train_arguments(tmp_path)) == 0
    assert "holds another run" in fails(*train_arguments(tmp_path))


FREED = """
import sys
from lfpo.base.environment import before_torch, keep_freed_memory
before_torch()
keep_freed_memory(int(sys.argv[1]))
first = b"1" * 2**24  # when it is freed, glibc's own threshold grows to its size
del first
pairs = [(b"1" * 2**23, b"1" * 2**16) for _ in range(16)]
small = [pair[1] for pair in pairs]
del pairs
print(open("/proc/self/status").read().split("RssAnon:")[1].split()[0])
"""


def test_outside_torchrun_a_rank_silences_nothing(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    assert "nowhere" in fails("report", "nowhere")


@pytest.mark.parametrize("torchrun", [True, False], ids=["torchrun", "scheduler"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_whose_ranks_share_no_work_is_done_by_one_of_torchrun_s(
    name: str, torchrun: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A scheduler's nodes, which have a RANK too, may each run it for themselves."""
    done: list[str | None] = []
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setitem(COMMANDS, name, lambda rest: done.append(os.environ.get("WORLD_SIZE")))
    for rank in "10":
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        assert main([name]) == 0
    shared = name in ("train", "sft", "dpo", "eval", "lm-eval", "demo")
    # The one belongs to no group, nor does what it starts.
    assert done == (["2", "2"] if shared else [None] if torchrun else [None, None])
    told = f"process 1: lfpo {name} is done by process 0 alone" in capsys.readouterr().err
    assert told == (torchrun and not shared)


@pytest.mark.long
def test_two_ranks_export_one_model(tmp_path: Path):
    ended = run_lfpo("export", "embedded", "--output", str(tmp_path / "model"), ranks=2, TORCHELASTIC_RUN_ID="1")
    assert ended.stdout == f"{tmp_path / 'model'}\n" and (tmp_path / "model" / "config.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator, and /proc")
def test_settings_of_the_process_before_torch(monkeypatch: pytest.MonkeyPatch):
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1"}
    variables = {k: v for k, v in os.environ.items() if k not in {"MALLOC_MMAP_THRESHOLD_", *settings}}
    for parameters, own, kept in (
        (10**10, {}, False),
        (10**8, {}, True),
        (10**8, {"MALLOC_MMAP_THRESHOLD_": "4096"}, False),
    ):
        command = [sys.executable, "-c", FREED, str(parameters)]
        found = subprocess.run(command, env={**variables, **own}, capture_output=True, text=True, check=True)
        assert (int(found.stdout) > 128 * 1024) == kept, "KiB in use, of which 128 MiB are free"
        assert kept or int(found.stdout) < 32 * 1024
    for name, expected in settings.items():
        monkeypatch.setenv(name, "theirs")
        before_torch()
        assert os.environ[name] == "theirs"
        monkeypatch.delenv(name)
        before_torch()
        assert os.environ[name] == expected
