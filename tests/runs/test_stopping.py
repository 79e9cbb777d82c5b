"""SIGTERM and SIGINT: a checkpoint of everything finished, an exit code that says so, a resume that shows no seam."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny
from letter_runs import metrics
from lfpo import LFPOConfig, LFPOTrainer
from lfpo.base import environment
from lfpo.config.sft import SFTConfig
from lfpo.core.algorithm import Algorithm
from lfpo.core.learner import Learner
from lfpo.core.observer import Observer
from lfpo.runs.context import ONE_REQUEST, Stopped, StopRequests
from lfpo.train.run import TrainingRun
from lfpo.train.sft import train_sft
from processes import start, start_lfpo
from small_runs import choice_config
from soon import soon
from update_cases import assert_same_bits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_llada(tmp_path_factory.mktemp("stopping") / "llada")


def config(folder: Path, model: Path) -> LFPOConfig:
    samplers = {"greedy": {"gen_length": 4}}
    return choice_config(folder, model, max_steps=3, eval_samplers=samplers, eval_steps=1, save_steps=100)


@pytest.fixture(scope="module")
def unbroken(model: Path) -> Path:
    folder = model.parent / "unbroken"
    LFPOTrainer(args=config(folder, model)).train()
    assert all(row["grad_norm"] > 0 for row in metrics(folder)[1:])
    return folder


def during(name: str, call: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Send SIGTERM at the start of the `call`-th call of a method of the trainer or its run."""
    owner: Any = {"save": TrainingRun, "update": Learner, "sample_and_score": Algorithm}.get(name, LFPOTrainer)
    real, count = getattr(owner, name), [0]

    def interrupted(self: Any, *args: Any) -> Any:
        count[0] += 1
        if count[0] == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    return lambda patch: patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("method", "call", "kept"),
    soon(
        [
            ("evaluate", 1, 0),  # before anything was learned
            ("sample_and_score", 2, 1),  # at once: nothing of iteration 2 is in the weights yet
            ("update", 2, 2),  # at the start of an update, which is finished
            ("evaluate", 3, 2),  # the update is in, its evaluation is made after the resume
            ("save", 1, 3),
        ],
        *(1, 2),
    ),
)
def test_a_signal_at_any_moment_loses_nothing_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path, unbroken: Path, method: str, call: int, kept: int
):
    with monkeypatch.context() as patch:
        during(method, call)(patch)
        with pytest.raises(Stopped, match="SIGTERM") as stopped:
            LFPOTrainer(args=config(tmp_path / "run", model)).train()
    assert stopped.value.number == signal.SIGTERM
    checkpoints = sorted(p.name for p in (tmp_path / "run").glob("checkpoints/step-*"))
    assert checkpoints == ([f"step-{kept}"] if kept else [])
    LFPOTrainer(args=config(tmp_path / "run", model)).train(resume=True)
    assert_same_bits(unbroken, tmp_path / "run")


def test_a_signal_is_answered_at_once_and_handlers_are_put_back(capfd: pytest.CaptureFixture[str]):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert "SIGINT: stops after this step, which is kept" in capfd.readouterr().err
        with pytest.raises(Stopped, match="SIGINT"):
            stop.check()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_supervised_training_stops_with_a_checkpoint_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings = SFTConfig(str(tmp_path / "run"), model="embedded", tasks={"choice": 1.0}, steps=4, batch_size=2)
    settings.logging_steps = 1

    def report(text: str) -> None:
        if text.startswith("step 1/"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="step-1 holds everything learned"):
        train_sft(settings, report=report)
    said: list[str] = []
    train_sft(settings, resume=True, report=said.append)
    assert any("resumed from" in line for line in said)


@pytest.mark.long
def test_the_command_line_says_what_was_kept_and_exits_with_the_signal(tmp_path: Path):
    run = tmp_path / "run"
    place = ("--output_dir", str(run), "--threads", "1")
    training = start_lfpo("train", "choice", *place, "--eval_size", "4", "--max_steps", "500")
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < 2:
        assert training.process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    training.process.terminate()
    ended = training.wait()
    assert ended.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in ended.stderr
    assert "stopped by SIGTERM" in ended.stderr and "--resume continues" in ended.stderr
    assert list(run.glob("checkpoints/step-*/manifest.json"))


def signalled_twice(apart: float, is_command: bool) -> None:
    environment.is_command = is_command
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.asked -= apart  # as if the first one were so many seconds older
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        print("still here", file=sys.stderr)


@pytest.mark.parametrize(
    ("apart", "is_command", "code", "said"),
    [
        (0.0, True, 0, "still here"),  # as torchrun forwards a scheduler's own signal
        (ONE_REQUEST, True, -signal.SIGTERM, ""),
        (ONE_REQUEST, False, 0, "interrupted\nstill here"),  # a notebook keeps its variables
    ],
)
def test_a_second_signal_is_the_same_request_at_first_and_later_ends_the_command_alone(
    apart: float, is_command: bool, code: int, said: str
):
    ended = start(signalled_twice, apart, is_command).wait()
    assert ended.returncode == code
    assert ended.stderr.strip().endswith(said) and ("still here" in ended.stderr) == bool(said)


def test_work_that_may_end_at_once_ends_for_a_request_that_came_before_and_only_while_it_runs():
    observer = Observer()
    with StopRequests(observer) as stop:
        with pytest.raises(ValueError, match="a bug"), observer.interruptible_work():
            raise ValueError("a bug")
        os.kill(os.getpid(), signal.SIGTERM)  # what follows an error may save: it goes on
        assert stop.received == signal.SIGTERM
        with pytest.raises(Stopped, match="SIGTERM"), observer.interruptible_work():
            pytest.fail("the request came before")
